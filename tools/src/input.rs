//! Input that is read completely: prompts, texts, lines. Each has a size limit, because reading
//! `/dev/zero` would use all memory.

use crate::args::Shared;
use crate::report::say;
use anyhow::{Context, bail};
use std::fs::File;
use std::io::{self, BufRead, IsTerminal, Read};
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// Maximum bytes of a text, or of a line of stdin: some hundred times the longest context.
const LIMIT: u64 = 256 << 20;

/// Time after which a line reports that kjit still waits for the end of a pipe.
const NOTICE_DELAY: Duration = Duration::from_secs(3);

/// Reads stdin to its end.
pub fn stdin(what: &str) -> anyhow::Result<Vec<u8>> {
    whole(io::stdin().lock(), || format!("{what} on stdin"))
}

/// Reads piped stdin to its end. Empty on a terminal, and without stdin. A user with a prompt may
/// not know that stdin is open, for instance a pipe that a script inherited. So if no data arrive,
/// a line reports that kjit waits for stdin.
pub fn piped(what: &str, shared: &Shared) -> anyhow::Result<Vec<u8>> {
    if io::stdin().is_terminal() {
        return Ok(vec![]);
    }
    let (done, waiting) = std::sync::mpsc::channel::<()>();
    let quiet = shared.quiet;
    // If the system cannot start the thread, that line is missing.
    let _ = std::thread::Builder::new().name("kjit waits for stdin".into()).spawn(move || {
        if waiting.recv_timeout(NOTICE_DELAY) == Err(RecvTimeoutError::Timeout) && !quiet {
            say("note: reading stdin to its end, \
                to put it before the prompt (< /dev/null if nothing should)");
        }
    });
    let read = stdin(what);
    drop(done);
    read
}

fn without_mark(bytes: &mut Vec<u8>) {
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
}

/// Reads a file as bytes, without a byte order mark. The text may have any character encoding.
pub fn raw_text(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = file(path)?;
    without_mark(&mut bytes);
    Ok(bytes)
}

/// Reads a file.
pub fn file(path: &Path) -> anyhow::Result<Vec<u8>> {
    let name = || path.display().to_string();
    let open = File::open(path).with_context(|| format!("cannot read {}", name()))?;
    whole(open, name)
}

fn whole(from: impl Read, name: impl Fn() -> String) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![];
    from.take(LIMIT + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {}", name()))?;
    if bytes.len() as u64 > LIMIT {
        bail!(
            "{} is longer than {} MiB, the limit of kjit: give a part of it",
            name(),
            LIMIT >> 20
        );
    }
    Ok(bytes)
}

/// The byte order mark that some editors write before a text. It is not part of the text.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The text of these bytes, without a byte order mark.
pub fn text(mut bytes: Vec<u8>, name: &str) -> anyhow::Result<String> {
    without_mark(&mut bytes);
    if bytes.starts_with(b"\xFF\xFE") || bytes.starts_with(b"\xFE\xFF") {
        bail!("{name} is UTF-16: save it as UTF-8");
    }
    String::from_utf8(bytes).with_context(|| format!("{name} is not UTF-8"))
}

/// Parses a line of stdin as JSON.
pub fn json(number: usize, line: &[u8]) -> anyhow::Result<serde_json::Value> {
    serde_json::from_slice(line).with_context(|| format!("line {number} of stdin is not JSON"))
}

/// Calls `each` with every line of stdin that is not blank, without its line end, and with its
/// number from 1. Lines may contain any bytes. A byte order mark before the first line is skipped.
pub fn lines(mut each: impl FnMut(usize, &[u8]) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut stdin = io::stdin().lock();
    let mut line = vec![];
    for number in 1.. {
        line.clear();
        let read = (&mut stdin).take(LIMIT + 1).read_until(b'\n', &mut line);
        if read.with_context(|| format!("cannot read line {number} of stdin"))? == 0 {
            break;
        }
        if line.len() as u64 > LIMIT {
            bail!("line {number} of stdin is longer than {} MiB, the limit of kjit", LIMIT >> 20);
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        if number == 1 {
            without_mark(&mut line);
        }
        if !line.trim_ascii().is_empty() {
            each(number, &line)?;
        }
    }
    Ok(())
}
