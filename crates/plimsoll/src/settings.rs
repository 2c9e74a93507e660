//! Settings: flags, then `PLIMSOLL_*` variables, then `plimsoll.toml`.
//!
//! The command line is the one description of all settings. Each flag of each command gets its
//! variable from its name, and a value of the file becomes the default of its flag; so nothing can
//! be set in one place and not in another, and `--help` shows all of it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::FalseyValueParser;
use clap::{ArgAction, Command, CommandFactory as _, FromArgMatches as _};
use toml::{Table, Value};

use crate::cli::Cli;
use crate::failure::Failure;

/// The file that is read where none is named.
const FILE: &str = "plimsoll.toml";
/// Names the file.
const FILE_VARIABLE: &str = "PLIMSOLL_CONFIG";
/// Holds a key itself; only `--key-file` goes before it.
pub(crate) const KEY_VARIABLE: &str = "PLIMSOLL_KEY";

/// Reads flags, variables and file. `None` where help or the version was asked for and shown.
///
/// # Errors
/// When a setting is unknown, missing or malformed.
pub(crate) fn parse(words: Vec<OsString>) -> Result<Option<Cli>, Failure> {
    let mut command = with_variables(Cli::command(), true);
    if let Some(path) = file_named(&words)? {
        command = with_file(command, &path)?;
    }
    let matches = match command.try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(error) if error.use_stderr() => {
            // The library's own text has what is wrong, and its hint.
            let _ = error.print();
            std::process::exit(2);
        }
        Err(error) => {
            let _ = error.print();
            return Ok(None);
        }
    };
    Cli::from_arg_matches(&matches).map(Some).map_err(|error| Failure::usage(error.to_string()))
}

/// The whole command line with its variables, as `--help` shows it.
#[cfg(test)]
pub(crate) fn command() -> Command {
    with_variables(Cli::command(), true)
}

/// Gives every flag its variable.
///
/// Names are made once for the process and never freed, because the library wants them static.
fn with_variables(command: Command, is_root: bool) -> Command {
    let command = command.mut_args(|arg| {
        let Some(long) = arg.get_long() else { return arg };
        if long == "config" && is_root {
            return arg.env(FILE_VARIABLE).hide_env_values(true);
        }
        let name = format!("PLIMSOLL_{}", long.to_uppercase().replace('-', "_"));
        let name: &'static str = name.leak();
        let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
        let arg = arg.env(name).hide_env_values(true);
        if is_flag { arg.value_parser(FalseyValueParser::new()) } else { arg }
    });
    command.mut_subcommands(|command| with_variables(command, false))
}

/// The file to read: the one that a flag or a variable names, else the usual one where it exists.
fn file_named(words: &[OsString]) -> Result<Option<PathBuf>, Failure> {
    let mut rest = words.iter().skip(1).take_while(|word| *word != "--");
    while let Some(word) = rest.next() {
        let text = word.to_string_lossy();
        if text == "--config" {
            return Ok(rest.next().map(PathBuf::from));
        }
        if let Some(path) = text.strip_prefix("--config=") {
            return Ok(Some(PathBuf::from(path)));
        }
    }
    if let Some(path) = std::env::var_os(FILE_VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(Some(PathBuf::from(path)));
    }
    let usual = Path::new(FILE);
    match usual.try_exists() {
        Ok(true) => Ok(Some(usual.to_owned())),
        Ok(false) => Ok(None),
        Err(error) => Err(Failure::usage(format!("{FILE} cannot be looked for: {error}"))),
    }
}

fn with_file(command: Command, path: &Path) -> Result<Command, Failure> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("{name} cannot be read: {error}")))?;
    let table: Table =
        text.parse().map_err(|error| Failure::usage(format!("{name} is no TOML: {error}")))?;
    with_table(command, &table, &name.to_string(), "")
}

/// Takes one table of the file as defaults of one command's flags. At the top, a value is for
/// every command that has such a flag.
fn with_table(
    mut command: Command,
    table: &Table,
    file: &str,
    section: &str,
) -> Result<Command, Failure> {
    for (key, value) in table {
        let long = key.replace('_', "-");
        if let Value::Table(inner) = value
            && command.find_subcommand(&long).is_some()
        {
            let inner_section =
                if section.is_empty() { long.clone() } else { format!("{section}.{long}") };
            let mut failure = None;
            command = command.mut_subcommand(&long, |sub| {
                with_table(sub.clone(), inner, file, &inner_section).unwrap_or_else(|error| {
                    failure = Some(error);
                    sub
                })
            });
            failure.map_or(Ok(()), Err)?;
            continue;
        }
        let place = if section.is_empty() { "the top".to_owned() } else { format!("[{section}]") };
        let words = words_of(value).ok_or_else(|| {
            Failure::usage(format!("{file}: {key} at {place} is no text, number, yes or list"))
        })?;
        // A key in the environment goes before a file named here.
        if long == "key-file" && std::env::var_os(KEY_VARIABLE).is_some() {
            continue;
        }
        let reach = if section.is_empty() { Reach::All } else { Reach::One };
        let (with, hits) = with_default(command, &long, &words, reach);
        command = with;
        if hits == 0 {
            let known: Vec<&str> = known(&command, section.is_empty());
            return Err(Failure::usage(format!("{file}: no setting {key:?} at {place}"))
                .hint(format!("there are: {}", known.join(", "))));
        }
    }
    Ok(command)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    One,
    All,
}

/// Makes a value the default of a flag; says how many flags took it.
fn with_default(
    command: Command,
    long: &str,
    words: &[&'static str],
    reach: Reach,
) -> (Command, usize) {
    let mut hits = 0;
    let mut command = command.mut_args(|arg| {
        if arg.get_long() != Some(long) || long == "config" {
            return arg;
        }
        hits += 1;
        arg.required(false).default_values(words.to_vec())
    });
    if reach == Reach::All {
        command = command.mut_subcommands(|sub| {
            let (sub, more) = with_default(sub, long, words, reach);
            hits += more;
            sub
        });
    }
    (command, hits)
}

fn known(command: &Command, is_root: bool) -> Vec<&str> {
    let flags = command.get_arguments().filter_map(clap::Arg::get_long);
    let mut names: Vec<&str> =
        flags.filter(|long| !matches!(*long, "help" | "version" | "config")).collect();
    if is_root {
        names.extend(command.get_subcommands().map(Command::get_name));
    }
    names
}

/// A value as words of a command line. They live as long as the process, as the flags do.
fn words_of(value: &Value) -> Option<Vec<&'static str>> {
    let word = |value: &Value| -> Option<&'static str> {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Boolean(yes) => yes.to_string(),
            _ => return None,
        };
        Some(text.leak())
    };
    match value {
        Value::Array(values) => values.iter().map(word).collect(),
        value => word(value).map(|word| vec![word]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Action, Cli};
    use crate::failure::Exit;

    fn read(file: &str, words: &[&str]) -> Result<Cli, Failure> {
        let table: Table = file.parse().unwrap();
        let command =
            with_table(with_variables(Cli::command(), true), &table, "plimsoll.toml", "")?;
        let words = std::iter::once("plimsoll").chain(words.iter().copied());
        let matches = command.try_get_matches_from(words).unwrap();
        Ok(Cli::from_arg_matches(&matches).unwrap())
    }

    fn create(cli: Cli) -> crate::client::create::Create {
        match cli.command {
            Action::Create(create) => create,
            _ => panic!("no create"),
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn the_file_gives_defaults_and_flags_go_before_it() {
        let file = "[create]\ntemplate = \"shell\"\nmemory_mib = 256\nlabel = [\"a=b\", \"c=d\"]\n";
        let cli = create(read(file, &["create"]).unwrap());
        let shape = serde_json::to_value(cli.shape.body().unwrap().unwrap()).unwrap();
        assert_eq!(shape["template"], "shell");
        assert_eq!(shape["memory_mib"], 256);
        assert_eq!(shape["labels"], serde_json::json!({"a": "b", "c": "d"}));
        let cli = create(read(file, &["create", "--memory-mib", "64"]).unwrap());
        let shape = serde_json::to_value(cli.shape.body().unwrap().unwrap()).unwrap();
        assert_eq!(shape["memory_mib"], 64);
    }

    #[test]
    fn a_value_at_the_top_is_for_every_command_that_has_it() {
        let cli =
            read("json = true\nurl = \"http://h:1\"\n", &["create", "--template", "t"]).unwrap();
        let connect = create(cli).connect;
        assert!(connect.json);
        assert_eq!(connect.url, ["http://h:1"]);
    }

    #[test]
    fn unknown_settings_are_refused_by_name() {
        for (file, name) in [
            ("[create]\nmemory = 1\n", "memory"),
            ("nonsense = 1\n", "nonsense"),
            ("[creat]\na = 1\n", "creat"),
        ] {
            let failure = read(file, &["ls"]).err().unwrap();
            assert_eq!(failure.exit(), Exit::Usage);
            assert!(failure.text().contains(name), "{}", failure.text());
        }
    }

    #[test]
    fn every_flag_has_a_variable_and_says_what_it_is() {
        fn walk(command: &Command) {
            for arg in command.get_arguments().filter(|arg| arg.get_long().is_some()) {
                let long = arg.get_long().unwrap();
                if matches!(long, "help" | "version") {
                    continue;
                }
                assert!(arg.get_env().is_some(), "{} --{long}", command.get_name());
                assert!(arg.get_help().is_some(), "{} --{long}", command.get_name());
            }
            command.get_subcommands().for_each(walk);
        }
        walk(&command());
    }
}
