//! Files of pictures and encoders that are damaged, too large or of another kind.

use super::goldens::data;
use image::{ExtendedColorType, ImageEncoder, codecs::jpeg::JpegEncoder};
use kjit_vision::{Picture, VisionEncoder, VisionError};

fn jpeg(width: u32, height: u32) -> Vec<u8> {
    let rgb: Vec<u8> = (0..3 * width * height).map(|i| (i * 7 % 251) as u8).collect();
    let mut bytes = vec![];
    let encoder = JpegEncoder::new(&mut bytes);
    encoder.write_image(&rgb, width, height, ExtendedColorType::Rgb8).unwrap();
    bytes
}

#[test]
fn pictures_cut_anywhere_are_refused_or_whole() {
    let png = std::fs::read(data("61x37.png")).unwrap();
    let webp = {
        let mut bytes = vec![];
        let whole = Picture::decode(&png).unwrap();
        let encoder = image::codecs::webp::WebPEncoder::new_lossless(&mut bytes);
        encoder.encode(&whole.rgb, 61, 37, ExtendedColorType::Rgb8).unwrap();
        assert_eq!(Picture::decode(&bytes).unwrap(), whole, "lossless");
        bytes
    };
    for file in [png, webp, jpeg(33, 20)] {
        let whole = Picture::decode(&file).unwrap();
        for end in (0..file.len()).step_by(7) {
            match Picture::decode(&file[..end]) {
                // Decoders of JPEG fill what is missing, as Pillow does not.
                Ok(picture) => assert_eq!(picture.rgb.len(), whole.rgb.len()),
                Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
            }
        }
        // Changed bytes neither panic nor hang.
        for at in 0..file.len().min(600) {
            let mut file = file.clone();
            file[at] ^= 0x5a;
            let _ = Picture::decode(&file);
        }
    }
}

#[test]
fn pictures_of_many_pixels_are_refused_before_decoding() {
    let mut file = jpeg(16, 16);
    // SOF0: marker, length, precision, then height and width.
    let at = file.windows(2).position(|two| two == [0xff, 0xc0]).unwrap();
    file[at + 5..at + 9].copy_from_slice(&[0xff, 0x00, 0xff, 0x00]);
    let error = Picture::decode(&file).unwrap_err();
    assert!(matches!(error, VisionError::Pixels { width: 0xff00, height: 0xff00 }), "{error}");
    assert!(matches!(Picture::decode(b"GIF89a......").unwrap_err(), VisionError::Format));
    assert!(matches!(Picture::decode(b"").unwrap_err(), VisionError::Format));
}

#[test]
fn turn_in_exif_data_is_applied() {
    let plain = jpeg(24, 16);
    // TIFF, big-endian, one entry: orientation (0x112), a short, 6: turn by 90° clockwise.
    let exif = b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
    let mut turned = vec![0xff, 0xd8, 0xff, 0xe1, 0, 2 + exif.len() as u8];
    turned.extend_from_slice(exif);
    turned.extend_from_slice(&plain[2..]);
    let (plain, turned) = (Picture::decode(&plain).unwrap(), Picture::decode(&turned).unwrap());
    assert_eq!((turned.width, turned.height), (16, 24));
    // The first pixel is the lower left one.
    assert_eq!(turned.rgb[..3], plain.rgb[3 * 24 * 15..][..3]);
}

#[test]
fn strips_need_no_more_memory_than_their_middle() {
    let encoder = VisionEncoder::open(data("llava.gguf"), 1).unwrap();
    for (width, height) in [(60_000, 1), (1, 60_000), (1, 1)] {
        let picture = Picture { width, height, rgb: vec![90; 3 * width * height] };
        let made = encoder.prepare_picture(&picture);
        assert_eq!(made.tiles().len(), 1);
        assert!(made.tiles()[0].rgb.iter().all(|x| *x == 90));
    }
}

#[test]
fn encoders_cut_anywhere_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = std::fs::read(data("llava.gguf")).unwrap();
    let path = folder.path().join("cut.gguf");
    for end in [0, 3, 24, 400, 900, 2000, file.len() / 2, file.len() - 40] {
        std::fs::write(&path, &file[..end]).unwrap();
        let error = VisionEncoder::open(&path, 1).map(drop).unwrap_err().to_string();
        assert!(error.contains("cut.gguf") && !error.contains('\n'), "{error}");
    }
    let changed = |from: &[u8], to: &[u8]| {
        let mut file = file.clone();
        let at = file.windows(from.len()).position(|part| part == from).unwrap();
        file[at..at + from.len()].copy_from_slice(to);
        std::fs::write(&path, file).unwrap();
        VisionEncoder::open(&path, 1).map(drop).unwrap_err().to_string()
    };
    let error = changed(b"\x04\0\0\0\0\0\0\0clip", b"\x04\0\0\0\0\0\0\0bert");
    assert!(error.contains("architecture 'bert' is no encoder of images"), "{error}");
    let error = changed(b"\x03\0\0\0\0\0\0\0mlp", b"\x03\0\0\0\0\0\0\0ldp");
    assert!(error.contains("projector 'ldp' is not known here"), "{error}");
    let error = changed(b"v.blk.1.attn_k.weight", b"v.blk.1.attn_X.weight");
    assert!(error.contains("cut.gguf"), "{error}");
}
