//! The trial of forms. At the first start of a model on a device, a token is timed as separate
//! launches, as a captured graph, and as one launch. The fastest form is used, and stored in the
//! cache by device, driver and plan, so that later starts read it.
//!
//! The logits of one launch are also compared with the logits of the other forms. If the process
//! ends during one launch, a mark stays in the cache, and the next start does not use one launch.

use super::plan::Plan;
use super::{Form, GpuRunner};
use kjit_engine::{Device, Digest, Engine};
use kjit_exec::{OpenOptions, Persistence, SessionError};
use std::time::Duration;

/// The time of one form's measurement.
const FORM_TIME: Duration = Duration::from_millis(100);
/// A form other than a graph must be faster by this factor, because graphs are tested best.
const CLEAR: f64 = 0.98;
/// The largest difference of logits, relative to their norm. Products are divided among threads
/// differently, and rounding to f16 causes differences of 1e-3 of the norm.
const MAX_LOGIT_DIFFERENCE: f64 = 2e-2;
/// The record of a trial that has started.
const STARTED: &str = "begun";

/// The trial of a model that is being opened.
pub(super) struct Trial {
    plan: String,
    known: Option<String>,
}

/// The plan of a record: its target, and the kernels and grids of a token.
#[must_use]
pub fn trial_plan(plan: &Plan) -> String {
    let launches = plan.decode.launches.iter().filter_map(|launch| {
        let job = plan.jobs.get(launch.job.0 as usize)?;
        Some(format!("{} {:?}\n", job.spec, launch.grid))
    });
    let text: String = launches.collect();
    Digest::of(format!("{} {}\n{text}", plan.target, plan.slots).as_bytes()).hex()
}

impl Trial {
    /// The trial of a plan. `None` if the form is set by an option, or if there is no choice.
    pub fn of(
        engine: &Engine,
        device: &Device,
        plan: &Plan,
        options: &OpenOptions,
    ) -> Option<Trial> {
        let open = options.persistent == Persistence::Auto
            && plan.persistent.is_empty()
            && !options.reproducible
            && plan.streaming.is_none()
            && plan.decode.pauses.is_empty()
            && plan.greedy.is_some();
        if !open || !engine.tries_forms(device.target().vendor()) {
            return None;
        }
        let plan = trial_plan(plan);
        let known = engine.launch_form(device.info(), &plan);
        Some(Trial { plan, known })
    }

    /// Whether the model needs its persistent kernel: there is no record yet, or this form was the
    /// fastest.
    pub fn wants_one_launch(&self) -> bool {
        match &self.known {
            None => true,
            Some(known) => first(known) == Some(Form::OneLaunch),
        }
    }

    /// Uses the known form, or runs the trial and stores its result.
    pub fn settle(
        self,
        engine: &Engine,
        device: &Device,
        runner: &mut GpuRunner,
    ) -> Result<(), SessionError> {
        if let Some(known) = &self.known {
            let form = first(known).unwrap_or(Form::Graph);
            runner.set_form(form)?;
            runner.keep_form();
            return Ok(());
        }
        let one = runner.has_form(Form::OneLaunch);
        if one {
            engine.keep_launch_form(device.info(), &self.plan, STARTED);
        }
        let (form, seconds, wrong) = tried(runner)?;
        runner.set_form(form)?;
        runner.keep_form();
        // If the kernel of one launch is still being compiled, that form is tried at the next
        // start.
        if one || !runner.compiles_one_launch() {
            let times: String =
                seconds.iter().map(|(f, s)| format!(" {}={s:.3e}", f.name())).collect();
            engine.keep_launch_form(device.info(), &self.plan, &format!("{}{times}", form.name()));
        }
        runner.remark(wrong.into_iter().collect());
        Ok(())
    }
}

/// The form of a record. A trial that did not end gives no form, and a graph is used.
fn first(record: &str) -> Option<Form> {
    Form::by_name(record.split(' ').next()?)
}

type Tried = (Form, Vec<(Form, f64)>, Option<String>);

/// The fastest form, the seconds of each form, and the fault of one launch, if any.
fn tried(runner: &mut GpuRunner) -> Result<Tried, SessionError> {
    let (mut seconds, mut wrong) = (vec![], None);
    let usual = if runner.has_form(Form::Graph) { Form::Graph } else { Form::Launches };
    runner.set_form(usual)?;
    let want = runner.trial_logits()?;
    for form in Form::ALL {
        if !runner.set_form(form)? {
            continue;
        }
        if form == Form::OneLaunch {
            let off = runner.trial_logits().map(|got| off(&got, &want));
            match off {
                Ok(off) if off <= MAX_LOGIT_DIFFERENCE => {}
                // A wait timed out, or the logits are wrong. After a lost device everything fails.
                Ok(off) => wrong = Some(format!("its logits are off by {off:.1e}")),
                Err(error) if runner.opened().memory().is_err() => return Err(error),
                Err(error) => wrong = Some(error.to_string()),
            }
            if wrong.is_some() {
                continue;
            }
        }
        seconds.push((form, runner.seconds_a_token(FORM_TIME)?));
    }
    let label = runner.device().label();
    let wrong = wrong.map(|why| {
        format!("one launch per token gives wrong results on {label} ({why}), so it is not used")
    });
    Ok((fastest(usual, &seconds), seconds, wrong))
}

/// The fastest form. The usual form stays unless another form is clearly faster.
fn fastest(usual: Form, seconds: &[(Form, f64)]) -> Form {
    let of = |form| seconds.iter().find(|(f, _)| *f == form).map_or(f64::INFINITY, |(_, s)| *s);
    let others = seconds.iter().filter(|(form, _)| *form != usual);
    let best = others.min_by(|a, b| a.1.total_cmp(&b.1));
    best.filter(|(_, s)| *s < CLEAR * of(usual)).map_or(usual, |(form, _)| *form)
}

/// The difference relative to the norm; infinite if a value is not finite or missing.
fn off(got: &[f32], want: &[f32]) -> f64 {
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let differences = got.iter().zip(want).map(|(g, w)| f64::from(*g) - f64::from(*w));
    let (off, norm) =
        (square(&mut differences.into_iter()), square(&mut want.iter().map(|w| f64::from(*w))));
    let off = (off / norm.max(f64::MIN_POSITIVE)).sqrt();
    if got.len() == want.len() && !got.is_empty() && off.is_finite() { off } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_form_stays_unless_another_is_clearly_faster() {
        let of = |l: f64, g: f64, o: f64| {
            fastest(Form::Graph, &[(Form::Launches, l), (Form::Graph, g), (Form::OneLaunch, o)])
        };
        assert_eq!(of(3.0, 2.0, 1.0), Form::OneLaunch);
        assert_eq!(of(1.0, 2.0, 1.5), Form::Launches);
        assert_eq!(of(3.0, 2.0, 1.99), Form::Graph);
        assert_eq!(of(3.0, 2.0, f64::NAN), Form::Graph);
        assert_eq!(fastest(Form::Launches, &[(Form::Launches, 1.0)]), Form::Launches);
    }

    #[test]
    fn record_round_trips_and_unfinished_record_gives_no_form() {
        assert_eq!(first("one_launch graph=1.0e-3 one_launch=8.0e-4"), Some(Form::OneLaunch));
        assert_eq!(first(STARTED), None);
        assert_eq!(first(""), None);
    }

    #[test]
    fn non_finite_logits_have_infinite_distance() {
        assert_eq!(off(&[1.0, 2.0], &[1.0, 2.0]), 0.0);
        assert!((off(&[1.1, 0.0], &[1.0, 0.0]) - 0.1).abs() < 1e-6);
        for got in [&[f32::NAN, 2.0][..], &[1.0], &[f32::INFINITY, 2.0]] {
            assert_eq!(off(got, &[1.0, 2.0]), f64::INFINITY);
        }
        assert_eq!(off(&[], &[]), f64::INFINITY);
    }
}
