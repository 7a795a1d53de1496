//! Ranks: several processes, on one or more machines, that compute each layer together. Each
//! process has one device. [`Ranks`] is the rank of this process; its launcher sets it.
//! `handshake.rs` connects the ranks, and `watchdog.rs` detects a rank that has ended. All ranks
//! compute all tokens. The vendor's library exchanges their partial results.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]

mod error;
mod handshake;
mod secret;
mod variable;
mod watchdog;

pub use handshake::{Hello, RankConnections, handshake};
use secret::Secret;
pub use variable::SECRET;
pub use watchdog::{DeviceWait, RemoteRanks};

pub use error::RanksError;
use std::time::Duration;

/// Environment variable: seconds that a rank waits for the others at the start.
const WAIT: &str = "KJIT_RANKS_WAIT";
/// Default of `KJIT_RANKS_WAIT`. A queue starts processes on many machines within seconds, but a
/// container image may have to be fetched first.
const USUAL_WAIT: Duration = Duration::from_secs(60);
/// Environment variable: seconds that a rank waits for another rank during work.
const LIMIT: &str = "KJIT_RANKS_LIMIT";
/// Default of `KJIT_RANKS_LIMIT`.
const USUAL_LIMIT: Duration = Duration::from_secs(10);
/// Rank 0's port if no variable sets one.
const PORT: u16 = 29_500;

/// The variables of a launcher.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    size: &'static str,
    /// The rank among the processes of its machine.
    local: &'static str,
    /// The number of processes on its machine; empty if the launcher does not set it.
    here: &'static str,
}

/// Launchers in order of precedence. The user set the variables with plain names. A launcher that
/// was started inside a job is more specific than the job.
const LAUNCHERS: &[Launcher] = &[
    Launcher {
        name: "RANK",
        rank: "RANK",
        size: "WORLD_SIZE",
        local: "LOCAL_RANK",
        here: "LOCAL_WORLD_SIZE",
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local: "OMPI_COMM_WORLD_LOCAL_RANK",
        here: "OMPI_COMM_WORLD_LOCAL_SIZE",
    },
    Launcher {
        name: "PMI",
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local: "MPI_LOCALRANKID",
        here: "MPI_LOCALNRANKS",
    },
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        size: "SLURM_NTASKS",
        local: "SLURM_LOCALID",
        here: "",
    },
    Launcher {
        name: "Kubernetes",
        rank: "JOB_COMPLETION_INDEX",
        size: "WORLD_SIZE",
        local: "LOCAL_RANK",
        here: "",
    },
];

/// The rank of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranks {
    /// The rank, from 0.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// The rank among the processes of its machine, from 0.
    pub local: usize,
    /// The launcher's name.
    pub launcher: &'static str,
    /// Address of rank 0; `port` is its port.
    host: String,
    port: u16,
    wait: Duration,
    /// The time limit of waiting for another rank during work.
    pub limit: Duration,
    /// Name of the job. It distinguishes two jobs on one port.
    job: String,
    /// The shared secret.
    secret: Secret,
}

impl Ranks {
    /// Reads the environment.
    ///
    /// # Errors
    /// Variables are missing or invalid.
    pub fn from_env() -> Result<Ranks, RanksError> {
        Ranks::of(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    /// Reads the variables by calling a function.
    ///
    /// # Errors
    /// See [`Ranks::from_env`].
    pub fn of(variable: &dyn Fn(&str) -> Option<String>) -> Result<Ranks, RanksError> {
        // Another program set RANK without WORLD_SIZE.
        let says = |l: &&Launcher| {
            variable(l.rank).is_some() && (l.rank != "RANK" || variable(l.size).is_some())
        };
        let mut by = LAUNCHERS.iter().find(says).ok_or(RanksError::None)?;
        // Slurm can also set PMI's variables, but they do not include the rank on the machine.
        let same = |pmi, slurm| variable(pmi).is_some() && variable(pmi) == variable(slurm);
        if by.name == "PMI" && same("PMI_RANK", "SLURM_PROCID") && same("PMI_SIZE", "SLURM_NTASKS")
        {
            by = LAUNCHERS.iter().find(|l| l.name == "Slurm").unwrap_or(by);
        }
        let missing =
            |variable, why| RanksError::Missing { launcher: by.name, has: by.rank, variable, why };
        let wrong =
            |variable, value, why: &str| RanksError::Value { variable, value, why: why.to_owned() };
        let number = |name: &'static str| match variable(name) {
            None => Ok(None),
            Some(text) => match text.parse::<usize>() {
                Ok(n) => Ok(Some(n)),
                Err(_) => Err(wrong(name, text, "is not a number")),
            },
        };
        if let Some(id) = variable("TORCHELASTIC_RUN_ID").filter(|_| by.name == "RANK") {
            let why = "was set by torchrun, which uses MASTER_PORT: \
                start with mpirun or srun, or set RANK and WORLD_SIZE without torchrun";
            return Err(wrong("TORCHELASTIC_RUN_ID", id, why));
        }
        let rank = number(by.rank)?.ok_or(RanksError::None)?;
        let size =
            number(by.size)?.ok_or_else(|| missing(by.size, ", to the number of processes"))?;
        if rank >= size {
            return Err(wrong(
                by.rank,
                rank.to_string(),
                &format!("must be less than {}={size}", by.size),
            ));
        }
        if size < 2 {
            return Err(wrong(
                by.size,
                size.to_string(),
                "means one process: remove --split ranks",
            ));
        }
        let local = number(by.local)?.unwrap_or(0);
        let nodes = variable("SLURM_STEP_NODELIST").or_else(|| variable("SLURM_JOB_NODELIST"));
        let all_here = variable(by.here).is_some_and(|here| here == size.to_string());
        let host = match variable("MASTER_ADDR") {
            Some(host) => host,
            None if by.name == "Slurm" && nodes.is_some() => first_host(&nodes.unwrap_or_default()),
            None if all_here => "127.0.0.1".to_owned(),
            None => return Err(missing("MASTER_ADDR", " to the address of the machine of rank 0")),
        };
        let job = number("SLURM_JOB_ID").ok().flatten().filter(|_| by.name == "Slurm");
        let port = match variable("MASTER_PORT") {
            Some(text) => text
                .parse()
                .ok()
                .filter(|p| *p > 0)
                .ok_or_else(|| wrong("MASTER_PORT", text, "is not a port number")),
            // Two Slurm jobs on one machine use two ports.
            None => Ok(job.map_or(PORT, |job| 20_000 + (job % 10_000) as u16)),
        }?;
        let seconds = |s: usize| Duration::from_secs(s.clamp(1, 86_400) as u64);
        let wait = number(WAIT)?.map_or(USUAL_WAIT, seconds);
        let limit = number(LIMIT)?.map_or(USUAL_LIMIT, seconds);
        let all =
            |names: &[&str]| names.iter().map(|name| variable(name)).collect::<Option<Vec<_>>>();
        let named = match by.name {
            "Slurm" => all(&["SLURM_JOB_ID", "SLURM_STEP_ID"]),
            "Open MPI" => all(&["PMIX_NAMESPACE"]),
            _ => None,
        };
        // The job's name becomes one word of a line.
        let plain = |c: char| if c.is_ascii_graphic() { c } else { '_' };
        let job =
            named.map_or("-".to_owned(), |n| n.join(".").chars().take(200).map(plain).collect());
        let secret = Secret::of(variable(SECRET))?;
        Ok(Ranks { rank, size, local, launcher: by.name, host, port, wait, limit, job, secret })
    }
}

/// The first name of a Slurm host list such as `node[03-07,09],other`.
fn first_host(list: &str) -> String {
    let Some((before, rest)) = list.split_once('[').filter(|(before, _)| !before.contains(','))
    else {
        return list.split(',').next().unwrap_or_default().to_owned();
    };
    let (inside, behind) = rest.split_once(']').unwrap_or((rest, ""));
    let number = inside.split(['-', ',']).next().unwrap_or_default();
    format!("{before}{number}{}", behind.split(',').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Ranks, String> {
        Ranks::of(&|name| variables.iter().find(|v| v.0 == name).map(|v| v.1.to_owned()))
            .map_err(|e| e.to_string())
    }

    #[test]
    fn variables_of_each_launcher_are_read() {
        let plain =
            of(&[("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "99")])
                .unwrap();
        assert_eq!(
            (plain.rank, plain.size, plain.local, &*plain.host, plain.port),
            (1, 4, 0, "a", 99)
        );
        let slurm = of(&[
            ("SLURM_PROCID", "5"),
            ("SLURM_NTASKS", "8"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_STEP_NODELIST", "node[03-07,09],other1"),
            ("SLURM_JOB_ID", "123456"),
        ]);
        let slurm = slurm.unwrap();
        assert_eq!((slurm.rank, slurm.size, slurm.local, slurm.launcher), (5, 8, 1, "Slurm"));
        assert_eq!((&*slurm.host, slurm.port), ("node03", 23_456));
        // An mpirun inside a Slurm job takes precedence.
        let both = of(&[
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "1"),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ]);
        let both = both.unwrap();
        assert_eq!(
            (both.launcher, both.rank, both.local, &*both.host),
            ("Open MPI", 1, 1, "127.0.0.1")
        );
        let job = of(&[
            ("JOB_COMPLETION_INDEX", "2"),
            ("WORLD_SIZE", "3"),
            ("MASTER_ADDR", "first.jobs"),
        ])
        .unwrap();
        assert_eq!((job.rank, job.size, job.port, job.wait.as_secs()), (2, 3, PORT, 60));
        assert_eq!(
            of(&[("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MASTER_ADDR", "a")]).unwrap().launcher,
            "PMI"
        );
        // With --mpi=pmi2 Slurm sets both kinds of variables, but the rank on the machine only in
        // Slurm's variables.
        let twice = of(&[
            ("PMI_RANK", "1"),
            ("PMI_SIZE", "2"),
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_JOB_ID", "7"),
            ("SLURM_STEP_ID", "3"),
            ("SLURM_STEP_NODELIST", "n1"),
        ]);
        let twice = twice.unwrap();
        assert_eq!((twice.launcher, twice.local, &*twice.job), ("Slurm", 1, "7.3"));
    }

    #[test]
    fn missing_or_invalid_rank_variables_are_named() {
        for (variables, says) in [
            (&[][..], "needs a launcher"),
            (&[("RANK", "1")], "needs a launcher"),
            (&[("SLURM_PROCID", "0")], "SLURM_NTASKS"),
            (&[("RANK", "2"), ("WORLD_SIZE", "2")], "RANK=2 must be less than WORLD_SIZE=2"),
            (&[("RANK", "0"), ("WORLD_SIZE", "1")], "remove --split ranks"),
            (&[("RANK", "x"), ("WORLD_SIZE", "2")], "RANK=x is not a number"),
            (&[("RANK", "0"), ("WORLD_SIZE", "2")], "MASTER_ADDR"),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "0")],
                "not a port",
            ),
            (&[("JOB_COMPLETION_INDEX", "0")], "WORLD_SIZE"),
            (
                &[
                    ("RANK", "0"),
                    ("WORLD_SIZE", "2"),
                    ("MASTER_ADDR", "a"),
                    ("KJIT_RANKS_SECRET", "short"),
                ],
                "KJIT_RANKS_SECRET has fewer than 16 characters",
            ),
            (&[("RANK", "0"), ("WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "x")], "torchrun"),
        ] {
            let error = of(variables).unwrap_err();
            assert!(error.contains(says), "{variables:?}: {error}");
        }
    }

    #[test]
    fn first_host_of_a_slurm_list_is_parsed() {
        for (list, first) in [
            ("a", "a"),
            ("a1,b2", "a1"),
            ("node[03-07,09]", "node03"),
            ("node[7,9]-ib,x", "node7-ib"),
            ("a,node[1-2]", "a"),
        ] {
            assert_eq!(first_host(list), first);
        }
    }
}
