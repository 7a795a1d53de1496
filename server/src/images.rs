//! Images in messages, in the words of all dialects.
//!
//! A reader writes a marker for each image into the text of its message. In the rendered prompt the
//! rows of the image replace the marker.

use crate::base64;
use crate::fetch::Fetch;
use crate::fields::Fields;
use crate::refusal::Refusal;
use kjit_model::images::{ImagesError, marker};
use std::borrow::Cow;

/// Maximum number of images of a request.
pub const MAX_IMAGES: usize = 64;

/// An image of a message.
#[derive(Debug)]
pub struct MessageImage {
    /// The marker of an image in the text of a message.
    pub marker: String,
    /// The field that holds the image, for errors.
    field: String,
    source: Source,
}

#[derive(Debug)]
enum Source {
    File(Vec<u8>),
    Address(String),
}

impl MessageImage {
    fn new(field: String, source: Source) -> MessageImage {
        MessageImage { marker: marker(), field, source }
    }

    /// An image in Base64, as in Ollama's API.
    pub fn of_base64(field: String, text: &str) -> Result<MessageImage, Refusal> {
        match base64::decode(text) {
            Some(file) => Ok(MessageImage::new(field, Source::File(file))),
            None => Err(Refusal::field(&field, "give the bytes of an image file in Base64")),
        }
    }

    /// An image behind a URL: `data:` with Base64, `http:` or `https:`.
    pub fn of_url(field: String, url: &str) -> Result<MessageImage, Refusal> {
        let scheme =
            |name: &str| url.get(..name.len()).is_some_and(|s| s.eq_ignore_ascii_case(name));
        if scheme("data:") {
            return match url.split_once(";base64,") {
                Some((_, text)) => MessageImage::of_base64(field, text),
                None => Err(Refusal::field(
                    &field,
                    "give a data URL in Base64: data:image/png;base64,…",
                )),
            };
        }
        match scheme("http:") || scheme("https:") {
            true => Ok(MessageImage::new(field, Source::Address(url.to_owned()))),
            false => Err(Refusal::field(&field, "give a data URL, or one with http or https")),
        }
    }

    /// The bytes of the file.
    ///
    /// # Errors
    /// The image is at an address, and the server may not fetch it, or it cannot.
    pub fn file(&self, fetch: Option<&Fetch>) -> Result<Cow<'_, [u8]>, Refusal> {
        match (&self.source, fetch) {
            (Source::File(file), _) => Ok(Cow::Borrowed(file)),
            (Source::Address(url), Some(fetch)) => {
                let file = fetch.get(url).map_err(|why| self.wrong(why))?;
                Ok(Cow::Owned(file))
            }
            (Source::Address(_), None) => Err(self.wrong(
                "images are not fetched: send a data URL, or start kjit serve with --allow-fetch",
            )),
        }
    }

    /// A refusal that names the image's field.
    pub fn wrong(&self, why: impl std::fmt::Display) -> Refusal {
        Refusal::field(&self.field, why)
    }
}

/// Reads OpenAI's `image_url`: an object with `url`, or the URL. `detail` says how much to read of
/// an image; here it is the encoder that decides.
pub fn image_url(part: &mut Fields) -> Result<MessageImage, Refusal> {
    part.ignore(&["detail"]);
    let field = part.name("image_url");
    if part.peek("image_url").is_some_and(serde_json::Value::is_string) {
        return MessageImage::of_url(field, &part.needed_text("image_url")?);
    }
    let Some(mut object) = part.object("image_url")? else {
        return Err(part.wrong("image_url", "is missing"));
    };
    object.ignore(&["detail"]);
    let image = MessageImage::of_url(object.name("url"), &object.needed_text("url")?)?;
    object.done()?;
    Ok(image)
}

/// Reads Anthropic's `source` of an image block: `base64` with `data`, or `url`.
pub fn source(block: &mut Fields) -> Result<MessageImage, Refusal> {
    block.ignore(&["cache_control"]);
    let Some(mut source) = block.object("source")? else {
        return Err(block.wrong("source", "is missing"));
    };
    source.ignore(&["media_type"]);
    let image = match source.needed_text("type")?.as_str() {
        "base64" => MessageImage::of_base64(source.name("data"), &source.needed_text("data")?)?,
        "url" => MessageImage::of_url(source.name("url"), &source.needed_text("url")?)?,
        _ => return Err(source.wrong("type", "give base64 or url")),
    };
    source.done()?;
    Ok(image)
}

/// Reads Ollama's `images`: texts in Base64.
pub fn list(f: &mut Fields, name: &str) -> Result<Vec<MessageImage>, Refusal> {
    let field = f.name(name);
    let one = |(i, text): (usize, serde_json::Value)| {
        let field = format!("{field}[{i}]");
        match text {
            serde_json::Value::String(text) => MessageImage::of_base64(field, &text),
            _ => Err(Refusal::field(&field, "give the bytes of an image file in Base64")),
        }
    };
    f.list(name)?.unwrap_or_default().into_iter().enumerate().map(one).collect()
}

/// A refusal in the course of making a prompt with images.
pub enum ImageRefusal {
    /// The image is at fault.
    Image(ImagesError),
    /// Something else is.
    Other(Refusal),
}

impl From<ImagesError> for ImageRefusal {
    fn from(error: ImagesError) -> ImageRefusal {
        ImageRefusal::Image(error)
    }
}

#[cfg(test)]
mod tests {
    use super::{MessageImage, image_url, source};
    use crate::fields::Fields;
    use serde_json::json;

    #[test]
    fn urls_of_images_are_read_or_refused_by_name() {
        let read = |url: &str| MessageImage::of_url("at".to_owned(), url);
        let image = read("data:image/png;base64,Zm9v").unwrap();
        assert_eq!(&*image.file(None).unwrap(), b"foo");
        let far = read("HTTPS://example.org/a.png").unwrap();
        assert!(far.file(None).unwrap_err().message().contains("--allow-fetch"));
        for (url, why) in [
            ("data:image/png,foo", "'at': give a data URL in Base64: data:image/png;base64,…"),
            ("data:;base64,*", "'at': give the bytes of an image file in Base64"),
            ("file:///etc/passwd", "'at': give a data URL, or one with http or https"),
            ("é", "'at': give a data URL, or one with http or https"),
        ] {
            assert_eq!(read(url).unwrap_err().message(), why);
        }
    }

    #[test]
    fn parts_of_dialects_name_their_fields() {
        let fields =
            |value: serde_json::Value| Fields::parse(value.to_string().as_bytes()).unwrap();
        let data = "data:image/png;base64,Zm9v";
        for part in [
            json!({ "image_url": { "url": data, "detail": "low" } }),
            json!({ "image_url": data, "detail": "auto" }),
        ] {
            let mut part = fields(part);
            assert_eq!(&*image_url(&mut part).unwrap().file(None).unwrap(), b"foo");
            part.done().unwrap();
        }
        let mut block = fields(
            json!({ "source": { "type": "base64", "media_type": "image/png", "data": "Zm9v" } }),
        );
        assert_eq!(&*source(&mut block).unwrap().file(None).unwrap(), b"foo");
        let mut block = fields(json!({ "source": { "type": "file", "file_id": "x" } }));
        assert_eq!(source(&mut block).unwrap_err().message(), "'source.type': give base64 or url");
        let mut part = fields(json!({ "image_url": {} }));
        assert_eq!(image_url(&mut part).unwrap_err().message(), "'image_url.url': is missing");
    }
}
