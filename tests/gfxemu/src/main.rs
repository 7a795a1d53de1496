//! `gfxemu BUNDLE [--match TEXT] [--wave N] [--case N] [--seed N] [--list]`: runs the cases of a
//! proof bundle and prints the verdicts.
#![allow(clippy::print_stdout)]

use gfxemu::bundle::{Bundle, CaseResult};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const USAGE: &str = "usage: gfxemu BUNDLE [--match TEXT] [--wave N] [--case N] [--seed N] \
    [--without TEXT] [--excused] [--loose] [--list] [--ways]
  runs the cases of a proof bundle (kjit doctor --export DIR --arch gfx1100) as machine code;
  --without runs each once for every instruction with that text, which is then left out, and says whether that shows;
  --excused: gfx12 code of LLVM before 20, without the hazard that it does not know (scalar registers kept by vector arithmetic)
  --loose: stores arrive in an order that the seed chooses, and no rule says who may see what
  --list: instead of that, the instructions of each case, those that it executed behind a star
  --ways: instead of that, what comes too early behind a matrix instruction on any way through the code";

struct CommandLine {
    folder: String,
    text: String,
    wave: Option<u32>,
    case: Option<usize>,
    seed: u64,
    without: Option<String>,
    excused: bool,
    loose: bool,
    list: bool,
    ways: bool,
}

fn arguments() -> Option<CommandLine> {
    let mut asked = CommandLine {
        folder: String::new(),
        text: String::new(),
        wave: None,
        case: None,
        seed: 1,
        without: None,
        excused: false,
        loose: false,
        list: false,
        ways: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--match" => asked.text = words.next()?,
            "--loose" => asked.loose = true,
            "--list" => asked.list = true,
            "--ways" => asked.ways = true,
            "--excused" => asked.excused = true,
            "--without" => asked.without = Some(words.next()?),
            "--wave" => asked.wave = Some(words.next()?.parse().ok()?),
            "--case" => asked.case = Some(words.next()?.parse().ok()?),
            "--seed" => asked.seed = words.next()?.parse().ok()?,
            _ if word.starts_with('-') || !asked.folder.is_empty() => return None,
            _ => asked.folder = word,
        }
    }
    (!asked.folder.is_empty()).then_some(asked)
}

fn main() -> ExitCode {
    let Some(asked) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut bundle =
        match gfxemu::llvm::available().and_then(|()| Bundle::open(asked.folder.as_ref())) {
            Ok(bundle) => bundle,
            Err(why) => {
                eprintln!("error: {why}");
                return ExitCode::FAILURE;
            }
        };
    bundle.excused = asked.excused;
    bundle.loose = asked.loose;
    let wanted = |i: &usize| {
        bundle.name(*i).contains(&asked.text)
            && asked.wave.is_none_or(|w| w == bundle.wave(*i))
            && asked.case.is_none_or(|c| c == *i)
    };
    let cases: Vec<usize> = (0..bundle.len()).filter(wanted).collect();
    if let Some(part) = &asked.without {
        return without(&bundle, &cases, part, asked.seed);
    }
    if asked.list {
        return list(&bundle, &cases, asked.seed);
    }
    if asked.ways {
        return ways(&bundle, &cases);
    }
    let (began, next) = (Instant::now(), AtomicUsize::new(0));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let verdicts: Vec<(usize, CaseResult)> = std::thread::scope(|scope| {
        let work = || {
            let mut out = Vec::new();
            while let Some(&i) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                let start = Instant::now();
                let verdict = bundle.run(i, asked.seed);
                let seconds = start.elapsed().as_secs_f64();
                let (word, rest) = match &verdict {
                    CaseResult::Right(n) => ("right", format!("{n} instructions")),
                    CaseResult::Wrong(why) => ("wrong", why.clone()),
                    CaseResult::Fault(why) => ("fault", why.clone()),
                    CaseResult::Unknown(why) => ("not run", why.clone()),
                };
                println!(
                    "{word:7} {i:4} {seconds:6.2} s  wave {} {}: {rest}",
                    bundle.wave(i),
                    bundle.name(i)
                );
                out.push((i, verdict));
            }
            out
        };
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        handles.into_iter().flat_map(|h| h.join().unwrap_or_default()).collect()
    });
    let count = |of: fn(&CaseResult) -> bool| verdicts.iter().filter(|(_, v)| of(v)).count();
    let right = count(|v| matches!(v, CaseResult::Right(_)));
    let instructions: u64 =
        verdicts.iter().map(|(_, v)| if let CaseResult::Right(n) = v { *n } else { 0 }).sum();
    println!(
        "{}: {right} right, {} wrong, {} at fault, {} not run; \
         {instructions} instructions in {:.1} s",
        bundle.arch(),
        count(|v| matches!(v, CaseResult::Wrong(_))),
        count(|v| matches!(v, CaseResult::Fault(_))),
        count(|v| matches!(v, CaseResult::Unknown(_))),
        began.elapsed().as_secs_f64()
    );
    if right > 0 && right == verdicts.len() && right == cases.len() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Lists the executed instructions of each case.
fn list(bundle: &Bundle, cases: &[usize], seed: u64) -> ExitCode {
    for &case in cases {
        let mut machine = match bundle.machine(case) {
            Ok(machine) => machine,
            Err(why) => {
                eprintln!("error: {}: {why}", bundle.name(case));
                return ExitCode::FAILURE;
            }
        };
        println!(
            "{} {case} {}: {:?}",
            bundle.arch(),
            bundle.name(case),
            bundle.run_on(&mut machine, case, seed)
        );
        for (at, inst) in machine.listing() {
            let star = if machine.executed(at) { '*' } else { ' ' };
            println!("{at:6x} {star} {}", inst.map_or_else(|why| why, |inst| inst.text.clone()));
        }
    }
    if cases.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Lists hazards on all paths through the code, executed or not.
fn ways(bundle: &Bundle, cases: &[usize]) -> ExitCode {
    let mut found = 0;
    for &case in cases {
        let early = bundle.machine(case).map(|machine| machine.too_early());
        let lines = early.unwrap_or_else(|why| vec![format!("not read: {why}")]);
        found += usize::from(!lines.is_empty());
        lines.iter().for_each(|line| println!("{case:4} {}: {line}", bundle.name(case)));
    }
    println!("{}: something comes too early in {found} of {} cases", bundle.arch(), cases.len());
    if found == 0 && !cases.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a case several times, each time with another instruction skipped.
fn without(bundle: &Bundle, cases: &[usize], part: &str, seed: u64) -> ExitCode {
    let (mut seen, mut all) = (0, 0);
    for &case in cases {
        let found = match bundle.run_without(case, part, seed) {
            Ok(found) => found,
            Err(why) => {
                println!("not run {}: {why}", bundle.name(case));
                continue;
            }
        };
        for (text, verdict) in found {
            let (word, why) = match verdict {
                CaseResult::Right(_) => ("unseen", String::new()),
                CaseResult::Wrong(why) => ("wrong", why),
                CaseResult::Fault(why) => ("fault", why),
                CaseResult::Unknown(why) => ("not run", why),
            };
            all += 1;
            seen += usize::from(word != "unseen");
            println!("{word:7} {case:4} {text}: {why}");
        }
    }
    println!("{seen} of {all} show");
    if all > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
