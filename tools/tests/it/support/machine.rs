//! The command on simulated AMD devices, for tests of the cache.

use crate::support::model;
use kjit_tests::simulator::Setup;
use serde_json::Value;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Output};

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");
/// A model of two layers with 18 kernels. Runs are short, because each kernel is compiled for the
/// CPU too.
pub const MODEL: &str = "tiny/tiny-llama-q8_0.gguf";
pub const RUN_SETTINGS: &[&str] = &["-c", "64", "--prefill-chunk", "16"];

/// The command on these simulated devices, with its cache in `home`.
pub struct Machine {
    pub devices: &'static str,
    pub home: PathBuf,
    /// Whether compilers are available.
    pub compilers: bool,
    pub packs: Option<std::ffi::OsString>,
    /// Whether the runtime only has the functions of ROCm 5.
    pub rocm5: bool,
    /// Calls of the simulated runtime that fail.
    pub fail: Option<String>,
}

impl Machine {
    pub fn new(devices: &'static str, home: PathBuf) -> Machine {
        Machine { devices, home, compilers: true, packs: None, rocm5: false, fail: None }
    }

    pub fn command(&self) -> Command {
        let mut setup =
            Setup::devices(self.devices).set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
        if let Some(fail) = &self.fail {
            setup = setup.set("HIPSIM_FAIL", fail);
        }
        setup = if self.rocm5 { setup.rocm5() } else { setup };
        let mut command = Command::new(assert_cmd::cargo::cargo_bin("kjit"));
        setup.apply(TEMPORARY, &mut command);
        command.env("KJIT_CACHE_DIR", &self.home).env("NO_COLOR", "1").env_remove("KJIT_PACK_PATH");
        if !self.compilers {
            let none = self.home.with_extension("no-compiler");
            command.env("KJIT_HIPRTC_LIBRARY", &none).env("KJIT_CLANG", &none);
        }
        if let Some(packs) = &self.packs {
            command.env("KJIT_PACK_PATH", packs);
        }
        command
    }

    pub fn kjit<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        self.command().args(args).output().unwrap()
    }

    /// Generates three tokens on a device, as a JSON document.
    pub fn run(&self, device: &str) -> Output {
        let model = model(MODEL);
        let args = [
            "run",
            model.to_str().unwrap(),
            "--raw",
            "-p",
            "hello",
            "-n",
            "3",
            "--temp",
            "0",
            "--json",
            "--device",
            device,
        ];
        self.kjit(args.iter().chain(RUN_SETTINGS))
    }

    pub fn warm(&self, arch: &str) -> Output {
        let model = model(MODEL);
        let args = [
            "warm",
            model.to_str().unwrap(),
            "--arch",
            arch,
            "--compiler",
            "hiprtc",
            "--json",
            "--jobs",
            "2",
        ];
        self.kjit(args.iter().chain(RUN_SETTINGS))
    }
}

pub fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
pub fn document(output: &Output) -> Value {
    assert!(output.status.success(), "{}: {}", output.status, err(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The single error line.
#[track_caller]
pub fn failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", err(output));
    let said = err(output);
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("error")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    lines[0].to_owned()
}

pub fn simulated(test: &str) -> bool {
    let here = cfg!(all(target_os = "linux", target_arch = "x86_64"));
    if !here {
        eprintln!("SKIPPED {test}: the simulated device's checks need x86-64 Linux");
    }
    here
}
