//! Errors of pictures and their encoders.

/// The error of a picture, or of the file of an encoder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VisionError {
    /// The encoder's file cannot be read.
    #[error(transparent)]
    File(#[from] kjit_gguf::Error),
    /// The file holds no encoder that kjit computes, or the encoder's sizes do not fit together.
    #[error("{path}: {why}")]
    Encoder {
        /// The file.
        path: String,
        /// The reason.
        why: String,
    },
    /// The picture is of another format than PNG, JPEG and WebP.
    #[error("the image is no PNG, JPEG or WebP file")]
    Format,
    /// The picture has too many pixels. It was not decoded.
    #[error("the image has {width} x {height} pixels, more than 64 megapixels: make it smaller")]
    Pixels {
        /// Pixels of a line.
        width: u32,
        /// Number of lines.
        height: u32,
    },
    /// The picture is damaged.
    #[error("the image is damaged or uses a feature that is not read: {0}")]
    Damaged(String),
}
