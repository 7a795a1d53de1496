//! Makes the pixels that an encoder reads, as the image processors of transformers do.

use crate::resize::resize_part;
use crate::settings::{Projector, Settings};
use crate::{Filter, Picture, Piece, layout, resize};

/// No side is larger, whatever the file says: transformers' own limit.
const MAX_SIDE: usize = 4096;

/// A picture that is ready for its encoder.
#[derive(Debug, Clone)]
pub struct Prepared {
    pub(crate) tiles: Vec<Picture>,
    layout: Vec<Piece>,
}

impl Prepared {
    /// The parts of the prompt, in order.
    pub fn layout(&self) -> &[Piece] {
        &self.layout
    }

    /// The pixels of each tile, before they are scaled. All tiles have the encoder's size.
    pub fn tiles(&self) -> &[Picture] {
        &self.tiles
    }

    pub(crate) fn new(picture: &Picture, settings: &Settings) -> Prepared {
        match settings.projector {
            Projector::Mlp => {
                let tiles = vec![clip(picture, settings.image)];
                Prepared { tiles, layout: vec![Piece::Rows(settings.rows())] }
            }
            Projector::Gemma3 => {
                let tiles = vec![resize(picture, settings.image, settings.image, Filter::Bilinear)];
                Prepared { tiles, layout: layout::gemma3(settings.rows()) }
            }
            Projector::InternVl => {
                let tiles = internvl(picture, settings.image);
                let layout = layout::internvl(tiles.len() * settings.rows());
                Prepared { tiles, layout }
            }
            Projector::Pixtral => {
                let square = settings.patch * settings.merge;
                let tile = pixtral(picture, settings.image, square);
                let layout = layout::pixtral(tile.width / square, tile.height / square);
                Prepared { tiles: vec![tile], layout }
            }
            Projector::Idefics3 => {
                let (tiles, lines, columns) = idefics3(picture, settings.longest, settings.image);
                Prepared { tiles, layout: layout::idefics3(lines, columns, settings.rows()) }
            }
        }
    }
}

/// CLIPImageProcessor: the shorter side becomes `size`, then the middle is cut out.
fn clip(picture: &Picture, size: usize) -> Picture {
    let (w, h) = (picture.width, picture.height);
    let long = |long: usize, short: usize| (size as f64 * long as f64 / short as f64) as usize;
    let (width, height) = if w <= h { (size, long(h, w)) } else { (long(w, h), size) };
    let middle = |side: usize| (side, (side - size) / 2..(side - size) / 2 + size);
    resize_part(picture, middle(width), middle(height), Filter::Bicubic)
}

/// Idefics3ImageProcessor with `do_image_splitting`: tiles line by line, then the whole picture;
/// the number of lines and columns of tiles, 0 if there are none.
fn idefics3(picture: &Picture, longest: usize, size: usize) -> (Vec<Picture>, usize, usize) {
    let (width, height) = longest_side(picture.width, picture.height, longest);
    let scaled = resize(picture, width, height, Filter::Lanczos);
    // Sides become multiples of a tile's.
    let ratio = width as f64 / height as f64;
    let up = |side: usize| side.div_ceil(size).max(1) * size;
    let (width, height) = if width >= height {
        let width = up(width);
        (width, up((width as f64 / ratio) as usize))
    } else {
        let height = up(height);
        (up((height as f64 * ratio) as usize), height)
    };
    let scaled = resize(&scaled, width, height, Filter::Lanczos);
    if width <= size && height <= size {
        return (vec![scaled], 0, 0);
    }
    let (lines, columns) = (height / size, width / size);
    let mut tiles = vec![];
    for line in 0..lines {
        for column in 0..columns {
            tiles.push(scaled.part(column * size, line * size, size, size));
        }
    }
    tiles.push(resize(&scaled, size, size, Filter::Lanczos));
    (tiles, lines, columns)
}

/// Sides for a longer side of `longest`; the other one is made even, as in transformers.
fn longest_side(width: usize, height: usize, longest: usize) -> (usize, usize) {
    let ratio = width as f64 / height as f64;
    let even = |side: f64| (side as usize).next_multiple_of(2).clamp(1, MAX_SIDE);
    match width >= height {
        true => (longest, even(longest as f64 / ratio).max(1)),
        false => (even(longest as f64 * ratio).max(1), longest),
    }
}

/// Most tiles of a picture for InternVL, besides the whole one.
const MOST_TILES: usize = 12;

/// GotOcr2ImageProcessor with `crop_to_patches`, for InternVL: tiles line by line, then the whole
/// picture if there are several.
fn internvl(picture: &Picture, size: usize) -> Vec<Picture> {
    let (columns, lines) = tiling(picture.width, picture.height, size);
    let scaled = resize(picture, columns * size, lines * size, Filter::Bicubic);
    let one = |at: usize| scaled.part(at % columns * size, at / columns * size, size, size);
    let mut tiles: Vec<Picture> = (0..columns * lines).map(one).collect();
    if tiles.len() > 1 {
        tiles.push(resize(picture, size, size, Filter::Bicubic));
    }
    tiles
}

/// Columns and lines of tiles, whose ratio is nearest to the picture's. Of equal ratios the one
/// with more tiles, up to twice the picture's area.
fn tiling(width: usize, height: usize, size: usize) -> (usize, usize) {
    let mut grids: Vec<(usize, usize)> = (1..=MOST_TILES)
        .flat_map(|columns| (1..=MOST_TILES / columns).map(move |lines| (columns, lines)))
        .collect();
    grids.sort_by_key(|(columns, lines)| columns * lines);
    let (ratio, area) = (width as f64 / height as f64, (width * height) as f64);
    let (mut best, mut nearest) = ((1, 1), f64::INFINITY);
    for (columns, lines) in grids {
        let off = (ratio - columns as f64 / lines as f64).abs();
        let large = area > 0.5 * (size * size * columns * lines) as f64;
        if off < nearest || off == nearest && large {
            (best, nearest) = ((columns, lines), off);
        }
    }
    best
}

/// PixtralImageProcessor: no side above `longest`, sides rounded up to multiples of `square`.
fn pixtral(picture: &Picture, longest: usize, square: usize) -> Picture {
    let (width, height) = (picture.width as f64, picture.height as f64);
    let ratio = (height / longest as f64).max(width / longest as f64).max(1.0);
    let side = |side: f64| ((side / ratio) as usize).max(1).next_multiple_of(square);
    resize(picture, side(width), side(height), Filter::Bicubic)
}
