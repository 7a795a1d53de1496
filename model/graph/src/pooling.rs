//! The pooling of rows to one vector.

/// The method that makes one vector from the rows of all tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Pooling {
    /// The mean of all rows.
    Mean,
    /// The row of the first token.
    First,
    /// The row of the last token.
    Last,
}

impl Pooling {
    /// The pooled vector of these rows.
    pub fn of(self, rows: &[f32], width: usize) -> Vec<f32> {
        let mut each = rows.chunks_exact(width.max(1));
        let n = each.len().max(1) as f64;
        match self {
            Pooling::First => each.next().unwrap_or_default().to_vec(),
            Pooling::Last => each.next_back().unwrap_or_default().to_vec(),
            Pooling::Mean => {
                let sum = |i: usize| {
                    rows.iter().skip(i).step_by(width.max(1)).map(|x| f64::from(*x)).sum::<f64>()
                };
                (0..width).map(|i| (sum(i) / n) as f32).collect()
            }
        }
    }
}
