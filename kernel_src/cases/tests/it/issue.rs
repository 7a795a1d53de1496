//! Compares the table of counted instructions with the samples from which it was made.

use kjit_engine::Target;
use kjit_kernel_cases::matrix::representative;
use kjit_kernels::issue;

#[test]
fn issue_rows_match_samples_and_load_minimum_bytes() {
    for row in issue::all() {
        let target = Target::parse(row.arch).unwrap();
        let samples = representative(&target).unwrap();
        let sample = samples.iter().find(|s| s.name == row.name);
        let sample = sample.unwrap_or_else(|| panic!("{}: no sample {}", row.arch, row.name));
        assert_eq!(
            (sample.work.bytes, sample.kernel.options.wave),
            (row.moves, row.wave),
            "{}",
            row.name
        );
        let e = row.executed;
        assert!(e.memory_bytes > 0.95 * row.moves as f64 && e.vector > 0.0, "{row:?}");
    }
}
