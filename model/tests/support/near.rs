//! The distance of results from expected results. Tests of other crates use this module as well.

/// ‖got − want‖₂ / ‖want‖₂; infinite if a value is NaN.
pub fn off(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let (d, n) = got.iter().zip(want).fold((0.0, 0.0), |(d, n), (g, w)| {
        let (g, w) = (f64::from(*g), f64::from(*w));
        (d + (g - w) * (g - w), n + w * w)
    });
    let off = (d / n.max(f64::MIN_POSITIVE)).sqrt();
    if off.is_nan() { f64::INFINITY } else { off }
}
