//! The metadata of an encoder.

use crate::VisionError;
use kjit_gguf::Gguf;

/// Limits of sizes, above those of all known encoders. They bound memory and time.
const MAX_SIDE: usize = 4096;
const MAX_PATCHES: usize = 1 << 14;
const MAX_BLOCKS: usize = 256;

/// The way from the encoder's rows to the model's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projector {
    /// LLaVA: a product, GELU, a product.
    Mlp,
    /// Idefics 3 and SmolVLM: squares of rows become one row, then a product.
    Idefics3,
    /// Gemma 3: the mean of squares of rows, a norm, a product.
    Gemma3,
    /// InternVL: squares of rows become one row, a norm, two products.
    InternVl,
    /// Pixtral and Mistral 3: pictures of any sides, rotations by line and column, two products.
    Pixtral,
}

/// The activation between the products of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// GELU by tanh.
    Gelu,
    /// GELU by the error function.
    ExactGelu,
    /// x · sigmoid(1.702 x)
    QuickGelu,
    /// x · sigmoid(x)
    Silu,
}

/// Sizes and constants of an encoder, checked.
#[derive(Debug, Clone)]
pub struct Settings {
    pub projector: Projector,
    pub activation: Activation,
    /// Pixels of a side of the picture that the encoder reads.
    pub image: usize,
    /// Pixels of a side of a patch.
    pub patch: usize,
    /// Longest side of a picture before it is divided into tiles.
    pub longest: usize,
    pub width: usize,
    pub heads: usize,
    pub epsilon: f32,
    /// Number of blocks that are computed.
    pub blocks: usize,
    /// Rows of a side of a square that becomes one row.
    pub merge: usize,
    pub mean: [f32; 3],
    pub std: [f32; 3],
}

impl Settings {
    /// Patches of a side.
    pub fn side(&self) -> usize {
        self.image / self.patch
    }

    /// Rows of the model for each picture or tile.
    pub fn rows(&self) -> usize {
        (self.side() / self.merge).pow(2)
    }

    /// Reads and checks the metadata.
    pub fn read(path: &str, gguf: &Gguf) -> Result<Settings, VisionError> {
        let wrong = |why: String| VisionError::Encoder { path: path.to_owned(), why };
        let arch = gguf.opt_str("general.architecture")?.unwrap_or("none").to_owned();
        if arch != "clip" {
            return Err(wrong(format!(
                "architecture '{arch}' is no encoder of images: \
                 give the model's mmproj file, whose general.architecture is 'clip'"
            )));
        }
        if !gguf.opt_bool("clip.has_vision_encoder")?.unwrap_or(false) {
            return Err(wrong("has no encoder of images (clip.has_vision_encoder)".to_owned()));
        }
        let kind = match gguf.opt_str("clip.vision.projector_type")? {
            None => gguf.opt_str("clip.projector_type")?.unwrap_or("mlp"),
            Some(kind) => kind,
        };
        let projector = match kind {
            "mlp" => Projector::Mlp,
            "idefics3" => Projector::Idefics3,
            "gemma3" => Projector::Gemma3,
            "internvl" => Projector::InternVl,
            "pixtral" => Projector::Pixtral,
            other => {
                return Err(wrong(format!(
                    "projector '{other}' is not known here: mlp (LLaVA), idefics3 (SmolVLM), \
                     gemma3, internvl and pixtral are"
                )));
            }
        };
        let size = |key: &str, most: usize| {
            let value = gguf.require_u32(key)? as usize;
            match (1..=most).contains(&value) {
                true => Ok(value),
                false => Err(wrong(format!("{key} is {value}, outside 1 to {most}"))),
            }
        };
        let image = size("clip.vision.image_size", MAX_SIDE)?;
        let patch = size("clip.vision.patch_size", image)?;
        let width = size("clip.vision.embedding_length", 1 << 16)?;
        let heads = size("clip.vision.attention.head_count", width)?;
        let all = size("clip.vision.block_count", MAX_BLOCKS)?;
        let pinned = gguf.opt_i32s("clip.vision.image_grid_pinpoints")?.unwrap_or_default();
        if !pinned.is_empty() {
            return Err(wrong(
                "tiles of LLaVA 1.6 (clip.vision.image_grid_pinpoints) are not computed here: \
                 give a LLaVA 1.5 or SmolVLM file"
                    .to_owned(),
            ));
        }
        let blocks = match gguf.opt_i32s("clip.vision.feature_layer")?.unwrap_or_default()[..] {
            // LLaVA takes the rows before the last block.
            [] if projector == Projector::Mlp => all - 1,
            [] => all,
            [one] if usize::try_from(one).is_ok_and(|one| one <= all) => one as usize,
            _ => {
                return Err(wrong(
                    "several layers as features (clip.vision.feature_layer) are not computed here"
                        .to_owned(),
                ));
            }
        };
        let merge = match projector {
            Projector::Mlp => 1,
            Projector::Idefics3 | Projector::InternVl => {
                size("clip.vision.projector.scale_factor", 16)?
            }
            Projector::Pixtral => match gguf.opt_u32("clip.vision.spatial_merge_size")? {
                Some(_) => size("clip.vision.spatial_merge_size", 16)?,
                None => 1,
            },
            // All files of Gemma 3 were made for squares of 4; some do not say so.
            Projector::Gemma3 if gguf.opt_u32("clip.vision.projector.scale_factor")?.is_none() => 4,
            Projector::Gemma3 => size("clip.vision.projector.scale_factor", 16)?,
        };
        let longest = match gguf.opt_u32("clip.vision.preproc_image_size")? {
            Some(longest) => (longest as usize).clamp(image, MAX_SIDE),
            None => image,
        };
        let flag = |key: &str| Ok::<_, VisionError>(gguf.opt_bool(key)?.unwrap_or(false));
        let exact = matches!(projector, Projector::InternVl | Projector::Pixtral);
        let activation = match (flag("clip.use_gelu")?, flag("clip.use_silu")?) {
            (true, _) if exact => Activation::ExactGelu,
            (true, _) => Activation::Gelu,
            (false, true) => Activation::Silu,
            (false, false) => Activation::QuickGelu,
        };
        let three = |key: &str| {
            let all = gguf.f32s(key)?;
            <[f32; 3]>::try_from(all)
                .map_err(|all| wrong(format!("{key} has {} values", all.len())))
        };
        let (mean, std) = (three("clip.vision.image_mean")?, three("clip.vision.image_std")?);
        if std.iter().any(|std| !(std.is_finite() && *std > 0.0)) {
            return Err(wrong("clip.vision.image_std has a value that is not above 0".to_owned()));
        }
        let epsilon = gguf.require_f32("clip.vision.attention.layer_norm_epsilon")?;
        let settings = Settings {
            projector,
            activation,
            image,
            patch,
            longest,
            width,
            heads,
            epsilon,
            blocks,
            merge,
            mean,
            std,
        };
        let side = settings.side();
        // Sides of pictures for Pixtral are made multiples.
        let any = projector == Projector::Pixtral;
        if !image.is_multiple_of(patch) && projector != Projector::Mlp && !any
            || !side.is_multiple_of(merge) && !any
            || any && !(width / heads).is_multiple_of(4)
            || side * side > MAX_PATCHES
            || !width.is_multiple_of(heads)
        {
            return Err(wrong(format!(
                "its sizes do not fit together: pictures of {image}, \
                 patches of {patch}, squares of {merge} rows, rows of {width} with {heads} heads"
            )));
        }
        Ok(settings)
    }
}
