//! A session with one sequence, for tests that need only one.

use kjit_engine::{Device, Engine};
use kjit_model::gguf::Gguf;
use kjit_model::gpu::GpuRunner;
use kjit_model::graph::Graph;
use kjit_model::host::{HostRunner, Isa};
use kjit_model::sample::{SampleOptions, Sampler};
use kjit_model::session::{
    DecodeControl, KvType, OpenOptions, SequenceId, Session, SessionError, Want,
};
use std::ops::ControlFlow;
use std::sync::Arc;

/// A session and its only sequence.
pub struct SoloSession {
    /// The session.
    pub session: Session,
    /// The only sequence of the session.
    pub id: SequenceId,
}

impl SoloSession {
    /// Adds the sequence to a session.
    pub fn of(mut session: Session) -> SoloSession {
        let id = session.add(SampleOptions::default()).unwrap();
        SoloSession { session, id }
    }

    /// Opens a model on the CPU.
    pub fn cpu(file: &Arc<Gguf>, graph: &Graph, options: &OpenOptions) -> SoloSession {
        SoloSession::of(Session::on_cpu(Arc::clone(file), graph.clone(), options).unwrap())
    }

    /// Opens a model on the CPU with products in f32, and with keys and values as devices store
    /// them.
    pub fn cpu_storing(
        file: &Arc<Gguf>,
        graph: &Graph,
        options: &OpenOptions,
        kv: KvType,
    ) -> SoloSession {
        let precise = OpenOptions { precise: true, ..options.clone() };
        let mut session = Session::on_cpu(Arc::clone(file), graph.clone(), &precise).unwrap();
        session.cpu_mut().unwrap().store_kv(kv);
        SoloSession::of(session)
    }

    /// Opens a model on the CPU with this instruction set.
    pub fn cpu_with(
        file: &Arc<Gguf>,
        graph: &Graph,
        options: &OpenOptions,
        isa: Isa,
    ) -> SoloSession {
        SoloSession::of(
            Session::on_cpu_with(Arc::clone(file), graph.clone(), options, isa).unwrap(),
        )
    }

    /// Opens a model on a GPU.
    pub fn gpu(
        engine: &Engine,
        device: &Device,
        file: &Arc<Gguf>,
        graph: &Graph,
        options: &OpenOptions,
    ) -> SoloSession {
        SoloSession::of(Session::on_gpu(engine, device, file, graph.clone(), options).unwrap())
    }

    /// The runner of the CPU.
    pub fn host(&mut self) -> &mut HostRunner {
        self.session.cpu_mut().unwrap()
    }

    /// The runner of the GPU.
    pub fn on_gpu(&self) -> &GpuRunner {
        self.session.gpu().unwrap()
    }

    /// Size of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        self.session.n_vocab()
    }

    /// Number of tokens in the sequence.
    pub fn tokens(&self) -> usize {
        self.session.len(self.id).unwrap()
    }

    /// Truncates the sequence to `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        let before = self.tokens();
        assert_eq!(
            self.session.truncate(self.id, len).unwrap(),
            len.min(before),
            "the host and plain attention go back"
        );
    }

    /// Feeds tokens and returns the requested rows.
    pub fn feed(&mut self, tokens: &[u32], want: Want) -> Result<Vec<f32>, SessionError> {
        self.session.feed(self.id, tokens, want)
    }

    /// Decodes with a new sampler until the sink breaks.
    pub fn decode(
        &mut self,
        first: &[u32],
        options: SampleOptions,
        sink: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<(), SessionError> {
        *self.session.sampler(self.id).unwrap() = Sampler::new(options);
        self.session.decode(&[(self.id, first)], &mut |_, token| match sink(token) {
            ControlFlow::Break(()) => DecodeControl::End,
            ControlFlow::Continue(()) => DecodeControl::Go,
        })
    }

    /// Generates `n` tokens after a prompt.
    pub fn generate(&mut self, prompt: &[u32], n: usize, options: SampleOptions) -> Vec<u32> {
        let (mut out, before) = (vec![], self.tokens());
        self.decode(prompt, options, &mut |id| {
            out.push(id);
            if out.len() == n { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        assert_eq!(self.tokens(), before + prompt.len() + n - 1, "the last token is not fed");
        out
    }
}
