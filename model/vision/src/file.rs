//! Decodes files of pictures.

use crate::VisionError;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use std::io::Cursor;

/// Maximum number of pixels of a picture. It is checked before pixels are decoded.
pub const MAX_PIXELS: u64 = 64 << 20;

/// Bytes of a decoded pixel: at most four channels of 16 bits; and as much again for the decoder.
const BYTES: u64 = 16;

/// A picture: 8-bit RGB, the lines from top to bottom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Pixels of a line, at least 1.
    pub width: usize,
    /// Number of lines, at least 1.
    pub height: usize,
    /// Red, green and blue of each pixel: `3 · width · height` bytes.
    pub rgb: Vec<u8>,
}

impl Picture {
    /// Decodes a PNG, JPEG or WebP file. Of an animation it is the first frame. Transparency is
    /// dropped, as Pillow's conversion to RGB does, and the turn in EXIF data is applied.
    ///
    /// # Errors
    /// Another format, more than [`MAX_PIXELS`] pixels, damaged data.
    pub fn decode(bytes: &[u8]) -> Result<Picture, VisionError> {
        // Some decoders end their messages with a new line.
        let damaged = |error: image::ImageError| {
            let error = error.to_string();
            VisionError::Damaged(error.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        let format = image::guess_format(bytes).map_err(|_| VisionError::Format)?;
        if !matches!(format, ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::WebP) {
            return Err(VisionError::Format);
        }
        let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
        let mut limits = Limits::no_limits();
        limits.max_alloc = Some(MAX_PIXELS * BYTES);
        reader.limits(limits);
        let mut decoder = reader.into_decoder().map_err(damaged)?;
        let (width, height) = decoder.dimensions();
        if u64::from(width) * u64::from(height) > MAX_PIXELS {
            return Err(VisionError::Pixels { width, height });
        }
        // EXIF data that cannot be read turn nothing, as in Pillow.
        let turn = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        let mut picture = DynamicImage::from_decoder(decoder).map_err(damaged)?;
        picture.apply_orientation(turn);
        let picture = picture.into_rgb8();
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        if width == 0 || height == 0 {
            return Err(VisionError::Damaged("it has no pixels".to_owned()));
        }
        Ok(Picture { width, height, rgb: picture.into_raw() })
    }

    /// The part that begins at column `x` and line `y`; it must be inside the picture.
    pub(crate) fn part(&self, x: usize, y: usize, width: usize, height: usize) -> Picture {
        let line = |at: usize| &self.rgb[3 * (at * self.width + x)..][..3 * width];
        Picture { width, height, rgb: (y..y + height).flat_map(line).copied().collect() }
    }
}
