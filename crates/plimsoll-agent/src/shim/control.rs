//! The shim's ear: a socket in the guest's folder through which the agent calls.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::files::remove_file;
use super::plan::{Answer, CALL_BYTES_MAX, Call};
use crate::driver::EXECS_MAX;

/// The socket's name in the guest's folder.
pub(crate) const SOCKET: &str = "call";
/// How long a caller may take to say what it wants, and to take the answer.
const TALK_LIMIT: Duration = Duration::from_secs(10);
/// Most calls at once: the execs, and some room for a change of state and for callers that are
/// told of the bound on execs.
const CALLS_MAX: usize = EXECS_MAX + 8;

/// Answers calls for as long as the process lives.
pub(super) fn serve(
    folder: &Path,
    answer: impl Fn(Call, &UnixStream) -> Answer + Send + Sync + 'static,
) -> io::Result<()> {
    let path = folder.join(SOCKET);
    // A former shim of this guest left its own.
    remove_file(&path)?;
    // The folder is the working one, so the path is short enough for a socket, wherever it is.
    let listener = UnixListener::bind(SOCKET)?;
    let answer = Arc::new(answer);
    let calls = Arc::new(AtomicUsize::new(0));
    std::thread::Builder::new().name("calls".into()).spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { continue };
            if calls.fetch_add(1, Ordering::SeqCst) >= CALLS_MAX {
                let detail = format!("{CALLS_MAX} calls are under way, which is the bound");
                say(&stream, &Answer::Failed { detail });
                calls.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            let (answer, own_calls) = (Arc::clone(&answer), Arc::clone(&calls));
            let thread = std::thread::Builder::new().name("call".into()).spawn(move || {
                let reply = match hear(&stream) {
                    Ok(call) => answer(call, &stream),
                    Err(error) => Answer::Failed { detail: format!("unreadable call: {error}") },
                };
                say(&stream, &reply);
                own_calls.fetch_sub(1, Ordering::SeqCst);
            });
            if thread.is_err() {
                calls.fetch_sub(1, Ordering::SeqCst);
            }
        }
    })?;
    Ok(())
}

fn hear(stream: &UnixStream) -> io::Result<Call> {
    stream.set_read_timeout(Some(TALK_LIMIT))?;
    stream.set_write_timeout(Some(TALK_LIMIT))?;
    let mut line = String::new();
    BufReader::new(stream.take(CALL_BYTES_MAX as u64)).read_line(&mut line)?;
    serde_json::from_str(&line).map_err(io::Error::other)
}

fn say(mut stream: &UnixStream, answer: &Answer) {
    let mut line = serde_json::to_vec(answer).unwrap_or_default();
    line.push(b'\n');
    // A caller that has gone needs no answer.
    let _ = stream.write_all(&line);
}
