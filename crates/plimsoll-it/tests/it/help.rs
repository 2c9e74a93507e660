//! The command line as `--help` shows it: a change of it is a change of the interface.

use crate::rig::Folder;

#[test]
fn help_of_every_command() {
    let folder = Folder::new();
    let commands = |words: &[&str]| -> Vec<String> {
        let text = folder.run(words).ok().stdout;
        let Some(list) = text.split("Commands:\n").nth(1) else { return Vec::new() };
        list.lines()
            .take_while(|line| !line.is_empty())
            .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
            .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
            .collect()
    };
    let mut all = folder.run(&["--help"]).ok().stdout;
    for command in commands(&["--help"]) {
        all.push_str(&format!("\n==== {command}\n"));
        all.push_str(&folder.run(&[&command, "--help"]).ok().stdout);
        for inner in commands(&[&command, "--help"]) {
            all.push_str(&format!("\n==== {command} {inner}\n"));
            all.push_str(&folder.run(&[&command, &inner, "--help"]).ok().stdout);
        }
    }
    assert!(!all.contains("guest-shim"), "the shim is no command for people");
    insta::assert_snapshot!(all);
}
