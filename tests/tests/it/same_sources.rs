//! Equal inputs give equal source bytes in every process and on every machine. This is necessary to
//! share caches between machines.

use kjit_cache::{Digest, Key};
use kjit_engine::{Job, Target};
use std::process::Command;

const TARGETS: &[&str] = &["sm_90a", "sm_75", "gfx1100", "gfx942", "gfx906"];
const INSIDE: &str = "TEST_SOURCES";

/// Every kernel at common sizes, for cards of every kind.
fn jobs() -> Vec<Job> {
    let of = |text: &&str| {
        let target = Target::parse(text).unwrap();
        let all = kjit_kernel_cases::matrix::representative(&target).unwrap();
        all.into_iter().map(move |sample| sample.kernel.job(&target)).collect::<Vec<_>>()
    };
    TARGETS.iter().flat_map(of).collect()
}

/// A line for each job: hashes of the source and all its headers, and the key.
fn lines() -> Vec<String> {
    let line = |job: Job| {
        let text = job.source.render(&job.constants, &job.options);
        let reached = job.source.reached().unwrap();
        let all = reached
            .iter()
            .fold(Key::builder("all").content("main", &text), |key, (n, t)| key.field(n, t));
        assert!(
            !text.contains(env!("CARGO_MANIFEST_DIR")),
            "{} has a path in it",
            job.source.name()
        );
        format!(
            "{} {} {} {}",
            job.source.name(),
            Digest::of(text.as_bytes()),
            all.finish().digest(),
            job.source_key().unwrap().digest()
        )
    };
    jobs().into_iter().map(line).collect()
}

#[test]
fn kernel_sources_and_keys_are_identical_across_processes() {
    let lines = lines();
    if std::env::var_os(INSIDE).is_some() {
        lines.iter().for_each(|line| eprintln!("SOURCE {line}"));
        return;
    }
    assert!(lines.len() > 300, "only {} kernels", lines.len());
    let test = "same_sources::kernel_sources_and_keys_are_identical_across_processes";
    for (place, language, zone) in
        [("/", "C", "UTC"), ("/tmp", "de_DE.UTF-8", "Asia/Tokyo"), ("/usr", "tr_TR.UTF-8", "")]
    {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env_clear().current_dir(place);
        command.env(INSIDE, "1").env("LC_ALL", language).env("TZ", zone).env("HOME", place);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stderr).unwrap();
        let there: Vec<&str> =
            text.lines().filter_map(|line| Some(line.split_once("SOURCE ")?.1)).collect();
        assert_eq!(there.len(), lines.len());
        let other = lines.iter().zip(&there).find(|(a, b)| a != *b);
        assert!(other.is_none(), "in {place}, {language}: {other:?}");
    }
    eprintln!("{} sources, the same in 4 processes", lines.len());
}
