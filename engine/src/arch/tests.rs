//! Tests of the architecture table and of targets.

use super::*;

#[test]
fn every_target_row_parses_and_prints_unchanged() {
    for arch in ARCHS {
        let target = Target::parse(arch.id).unwrap();
        assert_eq!(target.arch(), arch);
        assert_eq!(target.to_string(), arch.specific.unwrap_or(arch.id));
        assert_eq!(Target::parse(&target.to_string()).unwrap(), target);
    }
}

#[test]
fn sm_90_and_sm_90a_are_one_target() {
    let (a, b) = (Target::parse("sm_90").unwrap(), Target::parse("sm_90a").unwrap());
    assert_eq!(a, b);
    assert_eq!(Target::from_compute_capability(9, 0).unwrap(), a);
    assert_eq!(a.compile_id(false, &[]).unwrap(), "sm_90");
    assert_eq!(a.compile_id(true, &[]).unwrap(), "sm_90a");
    assert_eq!(Target::parse("sm_86").unwrap().compile_id(true, &[]).unwrap(), "sm_86");
    assert!(a.runs("sm_90a") && a.runs("sm_90") && !a.runs("sm_89"));
}

#[test]
fn feature_flags_reach_compiler_only_when_used() {
    let t = Target::parse("gfx90a:xnack-:sramecc+").unwrap();
    assert_eq!(t.to_string(), "gfx90a:sramecc+:xnack-");
    assert_eq!(t.compile_id(false, &[]).unwrap(), "gfx90a");
    assert_eq!(t.compile_id(false, &["xnack"]).unwrap(), "gfx90a:xnack-");
    assert!(t.runs("gfx90a") && t.runs("gfx90a:xnack-") && !t.runs("gfx90a:xnack+"));
    assert!(Target::parse("gfx90a").unwrap().compile_id(false, &["xnack"]).is_err());
}

#[test]
fn wrong_ids_and_flags_are_named() {
    for (text, word) in [
        ("sm_12345", "sm_12345"),
        ("gfx90a:xnack", "xnack"),
        ("gfx1100:xnack+", "xnack"),
        ("gfx90a:xnack+:xnack-", "twice"),
        ("", "supported"),
        ("sm_90:", "must end"),
    ] {
        let error = Target::parse(text).unwrap_err().to_string();
        assert!(error.contains(word), "{text}: {error}");
    }
}

#[test]
fn unlisted_compute_capability_uses_older_row_of_its_major() {
    assert_eq!(Target::from_compute_capability(8, 8).unwrap().id(), "sm_87");
    assert_eq!(Target::from_compute_capability(12, 0).unwrap().id(), "sm_120");
    assert!(Target::from_compute_capability(7, 0).is_err());
    assert!(Target::from_compute_capability(99, 9).is_err());
}

#[test]
fn occupancy_matches_hand_computed_values() {
    // sm_90: 256 threads with 32 registers: 8 blocks = 64 warps. 255 registers: 256 each, 2 warps
    // per sub-partition, 1 block of 8 warps.
    let h = Target::parse("sm_90").unwrap();
    assert_eq!(h.occupancy(256, 32, 0, 32).blocks, 8);
    let o = h.occupancy(256, 255, 0, 32);
    assert_eq!((o.blocks, o.waves, o.limit), (1, 8, Limit::Registers));
    // 100 KB per block: (100 + 1) KB twice is 202 of 228.
    assert_eq!(h.occupancy(128, 32, 100 * 1024, 32).blocks, 2);
    assert_eq!(h.occupancy(128, 32, 228 * 1024, 32).blocks, 0);
    // gfx1100 has 1536 registers per lane at wave width 32: 96 registers give 16 waves per SIMD. At
    // width 64, 768 / 96 = 8.
    let r = Target::parse("gfx1100").unwrap();
    assert_eq!(r.occupancy(32, 96, 0, 32).waves, 64);
    assert_eq!(r.occupancy(64, 96, 0, 64).waves, 32);
    // gfx1030: a block of 1024 uses both CUs of a work-group processor, 8 waves per SIMD, so 65
    // registers do not prevent it.
    assert_eq!(Target::parse("gfx1030").unwrap().occupancy(1024, 65, 0, 32).blocks, 1);
    // gfx90a: 512 registers, granularity 8: 128 registers give 4 waves per SIMD.
    assert_eq!(Target::parse("gfx90a").unwrap().occupancy(64, 128, 0, 64).waves, 16);
    // gfx1250: 1024 registers, granularity 16, as in clang 22. LDS in blocks of 2 KB: 64 KB fit
    // five times.
    let g = Target::parse("gfx1250").unwrap();
    for (registers, waves) in
        [(64, 16), (65, 12), (80, 12), (96, 10), (128, 8), (129, 7), (176, 5), (256, 4)]
    {
        assert_eq!(g.occupancy(32, registers, 0, 32).waves, 4 * waves, "{registers}");
    }
    assert_eq!(g.occupancy(256, 64, 64 * 1024, 32).blocks, 5);
    // gfx906: 256 registers: 64 registers give 4 waves per SIMD, 16 per CU, 4 blocks of 256.
    assert_eq!(Target::parse("gfx906").unwrap().occupancy(256, 64, 0, 64).blocks, 4);
}

#[test]
fn foreign_wave_width_is_refused_in_target() {
    let wide = Target::parse("gfx1100:wave64").unwrap();
    assert_eq!((wide.default_wave(), wide.to_string().as_str()), (64, "gfx1100:wave64"));
    assert_eq!(wide.compile_id(false, &[]).unwrap(), "gfx1100");
    assert_eq!(Target::parse("gfx1100:wave32").unwrap(), Target::parse("gfx1100").unwrap());
    assert_eq!(Target::parse("gfx90a:xnack-:wave64").unwrap().to_string(), "gfx90a:xnack-");
    for (bad, part) in [
        ("gfx942:wave32", "waves of 64"),
        ("gfx1250:wave64", "waves of 32"),
        ("gfx1100:wave48", "32 or 64"),
        ("gfx1100:wave64:wave64", "twice"),
    ] {
        let error = Target::parse(bad).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn every_amd_architecture_with_data_sheet_has_a_card() {
    for arch in ARCHS {
        let card = arch.card;
        // There is no data sheet of gfx1250.
        assert!(
            arch.vendor != Vendor::Amd || card.is_some() != (arch.id == "gfx1250"),
            "{}",
            arch.id
        );
        assert!(card.is_none_or(|c| c.gb_per_s > 40.0 && c.tflop_per_s > 1.0), "{}", arch.id);
    }
}

#[test]
fn unknown_chip_gets_family_defaults_and_a_note() {
    let facts = |id: &str| {
        let t = Target::parse(id).unwrap();
        assert_eq!((t.id(), t.to_string().as_str()), (id, id));
        assert_eq!(Target::parse(id).unwrap(), t);
        (t.fallback_row().unwrap(), t.arch().matrix, t.arch().dot, t.arch().max_registers)
    };
    // Steam Deck, the next RDNA 3.5, a CDNA 3 before MI300: they use rows of the same minor
    // version.
    assert_eq!(facts("gfx1033"), ("gfx1030", MatrixUnit::None, Dot::Sdot4, 256));
    assert_eq!(facts("gfx1154"), ("gfx1150", MatrixUnit::Wmma, Dot::Sudot4, 256));
    assert_eq!(facts("gfx941"), ("gfx942", MatrixUnit::Mfma, Dot::Sdot4, 512));
    assert_eq!(facts("gfx1251"), ("gfx1250", MatrixUnit::Wmma1250, Dot::Sudot4, 1024));
    assert_eq!(Target::parse("gfx1251").unwrap().waves(), [32]);
    // gfx90x are Vega and CDNA 1 and 2: they get Vega's abilities.
    assert_eq!(facts("gfx909"), ("gfx900", MatrixUnit::None, Dot::None, 256));
    // A minor version without a row: no matrix unit and no byte dot product.
    assert_eq!(facts("gfx1170").1, MatrixUnit::None);
    assert_eq!(facts("gfx1170").2, Dot::None);
    assert_eq!(Target::parse("gfx1100").unwrap().fallback_row(), None);
    for wrong in ["gfx1300", "gfx1", "gfx", "gfx11zz", "gfx9-generic", "gfx600", "gfxfffff"] {
        assert!(Target::parse(wrong).is_err(), "{wrong}");
    }
    assert!(Target::parse("gfx1033:xnack+").is_err() && Target::parse("gfx1154:wave64").is_ok());
}

#[test]
fn target_options_without_matrix_and_dot_keep_the_chip() {
    let whole = Target::parse("gfx1100").unwrap();
    let less = Target::parse("gfx1100:no-dot:no-matrix:wave64").unwrap();
    assert_eq!(less.to_string(), "gfx1100:no-matrix:no-dot:wave64");
    assert_eq!(Target::parse(&less.to_string()).unwrap(), less);
    assert_eq!(
        (less.arch().matrix, less.arch().dot, less.id()),
        (MatrixUnit::None, Dot::None, "gfx1100")
    );
    assert_ne!(less, whole.at_wave(64).unwrap());
    assert_eq!(whole.without(true, true).at_wave(64).unwrap(), less);
    assert_eq!(less.compile_id(false, &[]).unwrap(), "gfx1100");
    assert!(whole.runs("gfx1100") && whole.at_wave(48).is_none());
    for wrong in ["gfx900:no-dot", "gfx1030:no-matrix", "gfx1100:no-fun", "sm_90:no-matrix"] {
        assert!(Target::parse(wrong).unwrap_err().to_string().contains("has no option"), "{wrong}");
    }
}

#[test]
fn target_option_f32_alone_keeps_the_chip() {
    for (id, wide) in [
        ("gfx1100", true),
        ("gfx900", false),
        ("gfx908:sramecc+", false),
        ("gfx803", false),
        ("gfx1199", true),
    ] {
        let whole = Target::parse(id).unwrap();
        let least = whole.f32_alone();
        assert_eq!(Target::parse(&least.to_string()).unwrap(), least, "{id}");
        assert_eq!(least.to_string(), id.replacen(whole.id(), &format!("{}:f32", whole.id()), 1));
        assert_eq!(
            (least.arch().matrix, least.arch().dot, least.id()),
            (MatrixUnit::None, Dot::None, whole.id())
        );
        assert!(
            least.arch().has("f32-alone")
                && !least.arch().has("packed-f16")
                && !least.arch().has("copies-agprs")
        );
        assert_eq!(least.compile_id(false, &[]).unwrap(), whole.compile_id(false, &[]).unwrap());
        assert_ne!(least, whole);
        // This is the smallest variant.
        assert_eq!((least.without(true, true), least.f32_alone()), (least.clone(), least.clone()));
        assert_eq!(
            (least.with_sound_copies(), least.without_sound_copies()),
            (least.clone(), least.clone())
        );
        assert_eq!(whole.without(true, true).f32_alone(), least);
        assert_eq!(least.at_wave(32).is_some(), wide);
    }
    let other = Target::parse("gfx1100:f32:wave64").unwrap();
    assert_eq!(
        (other.to_string(), other.variant()),
        ("gfx1100:f32:wave64".to_owned(), ":f32:wave64".to_owned())
    );
    assert_eq!(Target::parse("gfx90a:sramecc+:xnack-").unwrap().variant(), "");
    for wrong in ["sm_90:f32", "gfx1100:f32:no-dot", "gfx1100:f16"] {
        assert!(Target::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn target_option_sound_copies_round_trips() {
    let plain = Target::parse("gfx908:xnack-").unwrap();
    let sound = plain.with_sound_copies();
    assert_eq!(sound.to_string(), "gfx908:sound-copies:xnack-");
    assert_eq!(Target::parse(&sound.to_string()).unwrap(), sound);
    assert!(
        plain.arch().has("copies-agprs")
            && !sound.arch().has("copies-agprs")
            && sound.arch().has("bf16")
    );
    assert_eq!(
        (sound.compile_id(false, &[]).unwrap(), sound.id()),
        ("gfx908".to_owned(), "gfx908")
    );
    // It can be combined with other variants, in any order, and removed.
    let less = sound.without(false, true);
    assert_eq!(less.to_string(), "gfx908:no-dot:sound-copies:xnack-");
    assert_eq!(plain.without(false, true).with_sound_copies(), less);
    assert_eq!((less.arch().dot, less.arch().matrix), (Dot::None, MatrixUnit::Mfma));
    assert_eq!(
        (sound.without_sound_copies(), less.without_sound_copies()),
        (plain.clone(), plain.without(false, true))
    );
    // Other chips have no such variant.
    let other = Target::parse("gfx90a").unwrap();
    assert_eq!((other.with_sound_copies(), other.without_sound_copies()), (other.clone(), other));
    for wrong in ["gfx90a:sound-copies", "sm_90:sound-copies", "gfx908:sound-copies:sound-copies"] {
        assert!(Target::parse(wrong).unwrap_err().to_string().contains("sound-copies"), "{wrong}");
    }
}
