//! The protocol between the engine and a compiler process. It consists of frames of byte strings,
//! each with its length. The other side is not trusted: lengths are checked before memory is
//! allocated.

use super::compiled::{Compiled, Probe};
use std::io::{Read, Write};

/// The first message. It must be equal on both sides, so that they use the same protocol.
pub(crate) const HELLO: &str = concat!("kjit-cc 1 ", env!("CARGO_PKG_VERSION"));

/// Maximum bytes of a string. It is larger than any source or code object.
const MOST_BYTES: u64 = 1 << 30;
const MOST_FIELDS: u32 = 4096;

/// A compile with all of its inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The name of the main file.
    pub file: String,
    /// Contents of the main file, preceded by the rendered constants.
    pub source: String,
    /// `(name, contents)` of the included files.
    pub headers: Vec<(String, String)>,
    pub arguments: Vec<String>,
}

/// A request to a compiler process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChildRequest {
    /// Open the compiler and return its properties.
    Probe { kind: String, file: String },
    /// Compile a source.
    Compile { kind: String, file: String, request: Request },
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChildResponse {
    Probe(Result<Probe, String>),
    Compiled(Compiled),
}

type Fields = Vec<Vec<u8>>;

fn frame(fields: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + fields.iter().map(|f| f.len() + 8).sum::<usize>());
    out.extend((fields.len() as u32).to_le_bytes());
    for field in fields {
        out.extend((field.len() as u64).to_le_bytes());
        out.extend(*field);
    }
    out
}

fn read_frame(from: &mut impl Read) -> std::io::Result<Option<Fields>> {
    let broken = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned());
    let mut count = [0u8; 4];
    // The stream may end between two frames. An end within a frame is an error.
    match from.read(&mut count)? {
        0 => return Ok(None),
        n => from.read_exact(count.get_mut(n..).unwrap_or_default())?,
    }
    let count = u32::from_le_bytes(count);
    if count > MOST_FIELDS {
        return Err(broken("a frame has too many fields"));
    }
    let mut fields = Vec::new();
    let mut total = 0u64;
    for _ in 0..count {
        let mut len = [0u8; 8];
        from.read_exact(&mut len)?;
        let len = u64::from_le_bytes(len);
        total = total.saturating_add(len);
        if total > MOST_BYTES {
            return Err(broken("a frame is too long"));
        }
        let mut field = Vec::new();
        if from.take(len).read_to_end(&mut field)? as u64 != len {
            return Err(broken("a frame is truncated"));
        }
        fields.push(field);
    }
    Ok(Some(fields))
}

fn text(field: Vec<u8>) -> Result<String, String> {
    String::from_utf8(field).map_err(|_| "text that is not UTF-8".to_owned())
}

impl ChildRequest {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            ChildRequest::Probe { kind, file } => {
                frame(&[HELLO.as_bytes(), b"probe", kind.as_bytes(), file.as_bytes()])
            }
            ChildRequest::Compile { kind, file, request: r } => {
                let headers = r.headers.len().to_string();
                let mut fields: Vec<&[u8]> =
                    vec![HELLO.as_bytes(), b"compile", kind.as_bytes(), file.as_bytes()];
                fields.extend([r.file.as_bytes(), r.source.as_bytes(), headers.as_bytes()]);
                for (name, text) in &r.headers {
                    fields.extend([name.as_bytes(), text.as_bytes()]);
                }
                fields.extend(r.arguments.iter().map(String::as_bytes));
                frame(&fields)
            }
        }
    }

    /// The next request; `None` at the end of the stream.
    pub fn read(from: &mut impl Read) -> Result<Option<ChildRequest>, String> {
        let Some(fields) = read_frame(from).map_err(|e| e.to_string())? else { return Ok(None) };
        let mut fields = fields.into_iter().map(text);
        let mut next = || fields.next().unwrap_or_else(|| Err("a field is missing".to_owned()));
        let hello = next()?;
        if hello != HELLO {
            return Err(format!("the other process speaks '{hello}', this process '{HELLO}'"));
        }
        let (op, kind, file) = (next()?, next()?, next()?);
        match op.as_str() {
            "probe" => Ok(Some(ChildRequest::Probe { kind, file })),
            "compile" => {
                let (main, source, count) = (next()?, next()?, next()?);
                let count: u32 =
                    count.parse().map_err(|_| "the number of headers is invalid".to_owned())?;
                let mut headers = Vec::new();
                for _ in 0..count.min(MOST_FIELDS) {
                    headers.push((next()?, next()?));
                }
                let arguments = fields.collect::<Result<_, _>>()?;
                let request = Request { file: main, source, headers, arguments };
                Ok(Some(ChildRequest::Compile { kind, file, request }))
            }
            other => Err(format!("unknown request '{other}'")),
        }
    }
}

impl ChildResponse {
    pub fn write(&self, to: &mut impl Write) -> std::io::Result<()> {
        let bytes = match self {
            ChildResponse::Probe(Ok(probe)) => {
                let version = [probe.version.0.to_string(), probe.version.1.to_string()];
                let mut fields: Vec<&[u8]> =
                    vec![b"probe", version[0].as_bytes(), version[1].as_bytes()];
                fields.extend(probe.ids.iter().map(String::as_bytes));
                frame(&fields)
            }
            ChildResponse::Probe(Err(why)) => frame(&[b"no probe", why.as_bytes()]),
            ChildResponse::Compiled(Compiled::Code { code, log }) => {
                frame(&[b"code", code, log.as_bytes()])
            }
            ChildResponse::Compiled(Compiled::Refused { log }) => {
                frame(&[b"refused", log.as_bytes()])
            }
            ChildResponse::Compiled(Compiled::Broken { why }) => {
                frame(&[b"broken", why.as_bytes()])
            }
        };
        to.write_all(&bytes)?;
        to.flush()
    }

    /// The next answer; `None` if the process has ended.
    pub fn read(from: &mut impl Read) -> Result<Option<ChildResponse>, String> {
        let Some(fields) = read_frame(from).map_err(|e| e.to_string())? else { return Ok(None) };
        let mut fields = fields.into_iter();
        let mut next = || fields.next().ok_or_else(|| "a field is missing".to_owned());
        let lossy = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let op = text(next()?)?;
        Ok(Some(match op.as_str() {
            "probe" => {
                let mut number =
                    || text(next()?)?.parse::<u32>().map_err(|_| "no version".to_owned());
                let version = (number()?, number()?);
                ChildResponse::Probe(Ok(Probe {
                    version,
                    ids: fields.map(text).collect::<Result<_, _>>()?,
                }))
            }
            "no probe" => ChildResponse::Probe(Err(lossy(next()?))),
            "code" => {
                ChildResponse::Compiled(Compiled::Code { code: next()?, log: lossy(next()?) })
            }
            "refused" => ChildResponse::Compiled(Compiled::Refused { log: lossy(next()?) }),
            "broken" => ChildResponse::Compiled(Compiled::Broken { why: lossy(next()?) }),
            other => return Err(format!("unknown answer '{other}'")),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile() -> ChildRequest {
        ChildRequest::Compile {
            kind: "nvrtc".into(),
            file: "/x/lib.so".into(),
            request: Request {
                file: "k.hip".into(),
                source: "int \u{e9};\n".into(),
                headers: vec![("a.h".into(), String::new()), ("b.h".into(), "b".into())],
                arguments: vec!["-O3".into(), "-x y".into()],
            },
        }
    }

    #[test]
    fn messages_round_trip() {
        for ask in
            [compile(), ChildRequest::Probe { kind: "clang".into(), file: "/usr/bin/clang".into() }]
        {
            assert_eq!(ChildRequest::read(&mut ask.encode().as_slice()).unwrap(), Some(ask));
        }
        let code = Compiled::Code { code: vec![0, 255, 10], log: "warning".into() };
        for answer in [
            ChildResponse::Probe(Ok(Probe {
                version: (13, 5),
                ids: vec!["sm_90".into(), "sm_90a".into()],
            })),
            ChildResponse::Probe(Err("gone".into())),
            ChildResponse::Compiled(code),
            ChildResponse::Compiled(Compiled::Refused { log: "error".into() }),
            ChildResponse::Compiled(Compiled::Broken { why: "x".into() }),
        ] {
            let mut bytes = Vec::new();
            answer.write(&mut bytes).unwrap();
            assert_eq!(ChildResponse::read(&mut bytes.as_slice()).unwrap(), Some(answer));
        }
        assert_eq!(ChildRequest::read(&mut [].as_slice()).unwrap(), None);
    }

    #[test]
    fn truncated_or_mislabelled_frame_is_an_error() {
        let whole = compile().encode();
        for len in 1..whole.len() {
            assert!(ChildRequest::read(&mut &whole[..len]).is_err(), "cut at {len}");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x80;
            // The result is another valid message (a changed letter) or an error. It is never a
            // panic or a huge allocation.
            let _ = ChildRequest::read(&mut bytes.as_slice());
            let _ = ChildResponse::read(&mut bytes.as_slice());
        }
    }
}
