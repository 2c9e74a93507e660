//! The templates of a first start: something to try on this very machine.

use plimsoll_api::{Template, TemplatePatch};
use plimsoll_client::Client;
use plimsoll_types::{Driver, TemplateName};

use crate::failure::Failure;

/// What gVisor itself takes beside a guest's memory, in MiB: its kernel and gofer, with room.
const GVISOR_OVERHEAD_MIB: u64 = 64;
/// Memory of a guest to try things with.
const TRY_MIB: u64 = 512;

/// Makes `shell` (gVisor's where that works, else a process, else simulated), `process`, and
/// `sleeper` where guests are simulated. Says what `shell` is.
///
/// # Errors
/// When the cell does not take them.
pub(crate) async fn make(client: &Client, drivers: &[Driver]) -> Result<&'static str, Failure> {
    let has = |driver| drivers.contains(&driver);
    let mut all = client.templates(&plimsoll_api::ListQuery::default()).await?.items;
    all.retain(|template| template.name.as_str() == "shell");
    let shell = if has(Driver::Gvisor) {
        let mut template = Template::new(name("shell"), Driver::Gvisor, TRY_MIB);
        template.overhead_mib = GVISOR_OVERHEAD_MIB;
        template.baked = true;
        template
    } else if has(Driver::Simulated) && !has(Driver::Process) {
        Template::new(name("shell"), Driver::Simulated, TRY_MIB)
    } else {
        Template::new(name("shell"), Driver::Process, TRY_MIB)
    };
    let word = match shell.driver {
        Driver::Gvisor => "runs in gVisor",
        Driver::Simulated => "is simulated: nothing runs",
        _ => "is a plain process, no security boundary: gVisor does not work here",
    };
    put(client, all.first(), shell).await?;
    if has(Driver::Process) {
        put(client, None, Template::new(name("process"), Driver::Process, TRY_MIB)).await?;
    }
    if has(Driver::Simulated) {
        put(client, None, Template::new(name("sleeper"), Driver::Simulated, TRY_MIB)).await?;
    }
    Ok(word)
}

fn name(text: &str) -> TemplateName {
    text.parse().expect("a valid name")
}

/// Makes a template, or makes the one that is there so.
async fn put(client: &Client, held: Option<&Template>, wanted: Template) -> Result<(), Failure> {
    if held.is_none() {
        client.create_template(&wanted).await?;
        return Ok(());
    }
    let patch = TemplatePatch {
        driver: Some(wanted.driver),
        memory_mib: Some(wanted.memory_mib),
        overhead_mib: Some(wanted.overhead_mib),
        baked: Some(wanted.baked),
        ..TemplatePatch::default()
    };
    client.patch_template(&wanted.name, &patch).await?;
    Ok(())
}
