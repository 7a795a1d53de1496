//! Experts on the CPU beside a simulated AMD device that has all else: the host's logits and tokens, alone and side by
//! side, with less memory on the device.

use kjit_model::placement::experts_apart;
use kjit_model::session::{KvType, OpenOptions, Session, SessionError};
use kjit_tests::files::model_path;
use kjit_tests::one::One;
use kjit_tests::several::{Several, options, setup};
use kjit_tests::side_by_side;
use kjit_tests::simulator::Simulated;

const WORKER: &str = env!("CARGO_BIN_EXE_kjit-tests-cc");
const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");
const EXPERTS: &str = "tiny/tiny-moe-q4_k_m.gguf";

fn open(all: &Several, options: &OpenOptions) -> Result<Session, SessionError> {
    let device = all.engine.device("rocm:0").unwrap();
    Session::on_gpu(&all.engine, &device, &all.gguf, all.graph.clone(), options)
}

#[test]
fn experts_on_the_cpu_beside_simulated_gfx90a_give_the_hosts_logits() {
    let test = "experts_on_the_cpu_beside_simulated_gfx90a_give_the_hosts_logits";
    if model_path(EXPERTS).is_none() {
        return;
    }
    setup("gfx90a:sramecc+:xnack-").run(test, TEMPORARY, || {
        let all = Several::new(EXPERTS, TEMPORARY, WORKER);
        let here = options(KvType::F16);
        let precise = OpenOptions { precise: true, sequences: 1, ..here.clone() };
        let mut host = One::cpu(&all.gguf, &all.graph, &precise);
        let mut alone = open(&all, &OpenOptions { precise: true, ..here.clone() }).unwrap();
        let whole = alone.gpu().unwrap().plan().memory.weights;
        let mut off = side_by_side::scores(&mut alone, &mut host, 3);
        off.extend(side_by_side::mixed(&mut alone, &mut host));
        drop(alone);
        let mut weights = whole;
        // The CPU rounds rows to eight bits, as it does alone: where two experts' scores are near, another is chosen.
        for (n, precise) in [(1, false), (99, true)] {
            let mut session = open(&all, &OpenOptions { host_experts: n, precise, ..here.clone() }).unwrap();
            let gpu = session.gpu().unwrap();
            let (taken, of) = (n.min(3), 3);
            let said = format!("the CPU computes the experts of {taken} of {of} layers that have some");
            assert!(gpu.remarks().contains(&said), "{:?}", gpu.remarks());
            assert!(gpu.plan().no_prompts.is_none(), "prompts go in pieces: {:?}", gpu.plan().no_prompts);
            assert_eq!(gpu.plan().decode.pauses.len(), taken);
            assert!(gpu.plan().memory.weights < weights, "{n}: {} of {weights}", gpu.plan().memory.weights);
            weights = gpu.plan().memory.weights;
            let mut seen = side_by_side::scores(&mut session, &mut host, 3);
            if precise {
                // Off as the device alone is: there one row has another expert, whose score is near.
                seen.extend(side_by_side::mixed(&mut session, &mut host));
                let gap = side_by_side::joining(&mut session, &mut host, 2);
                assert!(gap < 0.05, "a token is {gap} below the host's choice");
                assert!(
                    seen.iter().zip(&off).all(|(x, off)| *x < off + 1e-3),
                    "logits are off by {seen:?}, not {off:?}"
                );
            }
            seen.sort_by(f64::total_cmp);
            assert!(seen[seen.len() / 2] < 4e-3, "{n}: logits are off by {seen:?}");
        }
        assert!(weights < whole / 2, "most of a mixture are its experts: {weights} of {whole}");
        assert_eq!(Simulated::here().fault(0), "");
        // What does not fit then is not streamed beside it.
        let memory = Some(weights / 2);
        let error = open(&all, &OpenOptions { host_experts: 1, memory, ..here }).err().unwrap().to_string();
        assert!(error.contains("a larger --host-experts"), "{error}");
    });
}

#[test]
fn a_graph_without_experts_says_so() {
    let Some(path) = model_path("tiny/tiny-llama-q4_k_m.gguf") else { return };
    let gguf = kjit_model::gguf::Gguf::open(&path).unwrap();
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let error = experts_apart(&graph, 1).unwrap_err().to_string();
    assert!(error.contains("architecture 'llama' has no experts"), "{error}");
}
