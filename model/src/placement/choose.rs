//! Chooses stages: the devices, and the layers of each.

use super::{CutError, DeviceMemory, DivideError, LayerNeed, Layers, StageDevice, divide, needs};
use crate::device::DeviceChoice;
use crate::gguf::Gguf;
use crate::gpu::{free_memory, plan_for};
use crate::graph::Graph;
use crate::session::{OpenOptions, Persistence, Session, SessionError, Split};
use kjit_engine::Engine;
use std::sync::Arc;

/// Device memory that is left free in addition to a stage's plan: for copies, kernels and their
/// tests.
const RESERVED_BYTES: u64 = 256 << 20;

/// The reason why layers cannot be placed as requested.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// [`Split::Tensor`] was requested without several GPUs.
    #[error("--split tensor needs several GPUs, which compute each layer together: {0}")]
    Tensor(&'static str),
    /// [`Split::Ranks`](crate::session::Split::Ranks) was requested without ranks, or with an
    /// option that cannot be combined with it.
    #[error("{0}")]
    Ranks(String),
    /// [`Persistence::On`] was requested with several stages.
    #[error("--persistent on cannot be combined with --split layers: remove one of them")]
    Persistent,
    /// [`OpenOptions::stream`] was requested with several stages.
    #[error("--stream needs exactly one device: remove it or use one device")]
    Stream,
    /// Host experts were requested without exactly one GPU for the rest.
    #[error("--host-experts needs exactly one GPU for the rest of the model: {0}")]
    Experts(String),
    /// Host FFN was requested without exactly one GPU for the rest.
    #[error("--host-ffn needs exactly one GPU for the rest of the model: {0}")]
    Ffn(String),
    /// Host layers were requested without a GPU for the other layers.
    #[error("--host-layers needs a GPU for the other layers: {0}")]
    NoGpu(String),
    /// More host layers were requested than possible.
    #[error(
        "--host-layers {asked}: \
         the model has {layers} layers, and each of {gpus} GPUs needs at least one"
    )]
    HostLayers {
        /// Requested number of host layers.
        asked: usize,
        /// Number of layers of the model.
        layers: usize,
        /// Number of GPUs.
        gpus: usize,
    },
    /// The model cannot be cut into layers.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// The layers cannot be divided among the devices.
    #[error(transparent)]
    Divide(#[from] DivideError),
    /// A device failed.
    #[error("--device {label}: {source}")]
    Device {
        /// The device.
        label: String,
        /// The cause.
        source: SessionError,
    },
}

/// Number of layers on the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HostLayers {
    /// A fixed number.
    These(usize),
    /// As few as possible.
    Rest,
}

/// Requested devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestedDevices {
    /// GPUs in the order of their layers.
    gpus: Vec<String>,
    host: HostLayers,
    /// Tensor split: all GPUs compute each layer together.
    together: bool,
}

/// A chosen stage.
pub(crate) struct ChosenStage {
    pub label: String,
    pub place: StageDevice,
    pub layers: usize,
}

impl RequestedDevices {
    /// The devices that the options request; `None` if one device has all layers.
    pub fn of(
        options: &OpenOptions,
        engine: &Engine,
    ) -> Result<Option<RequestedDevices>, PlacementError> {
        let together = options.split == Split::Tensor;
        let asked = options.host_layers.filter(|n| *n > 0);
        let ffn = options.host_ffn.unwrap_or(0) > 0;
        if options.host_experts > 0 || ffn {
            let refused = match &options.device {
                _ if ffn && options.host_experts > 0 => Some("remove --host-experts"),
                _ if together => Some("remove --split tensor"),
                _ if asked.is_some() => Some("remove --host-layers"),
                _ if options.stream => Some("remove --stream"),
                DeviceChoice::Several(_) => Some("name one GPU with --device"),
                DeviceChoice::Cpu => Some("--device names no GPU"),
                DeviceChoice::Auto | DeviceChoice::Gpu { .. } => None,
            };
            if let Some(why) = refused {
                let refused = if ffn { PlacementError::Ffn } else { PlacementError::Experts };
                return Err(refused(why.to_owned()));
            }
        }
        let no_gpu = |why: &str| PlacementError::NoGpu(why.to_owned());
        let (gpus, cpu) = match (&options.device, asked) {
            (DeviceChoice::Several(devices), _) => {
                let gpus = devices
                    .all()
                    .iter()
                    .filter(|d| **d != DeviceChoice::Cpu)
                    .map(ToString::to_string);
                (gpus.collect::<Vec<_>>(), devices.all().contains(&DeviceChoice::Cpu))
            }
            (_, None) if together => return Err(PlacementError::Tensor(TOO_FEW_DEVICES)),
            (_, None) => return Ok(None),
            (DeviceChoice::Cpu, _) => return Err(no_gpu("--device names no GPU")),
            (gpu @ DeviceChoice::Gpu { .. }, _) => (vec![gpu.to_string()], false),
            (DeviceChoice::Auto, _) => {
                let here = engine.devices();
                let first = here.preferred().map(|device| device.label());
                (
                    vec![first.ok_or_else(|| {
                        no_gpu(&format!("auto found no GPU: {}", here.why_none()))
                    })?],
                    false,
                )
            }
        };
        let host = match (options.host_layers, cpu) {
            (None, true) => HostLayers::Rest,
            (n, _) => HostLayers::These(n.unwrap_or(0)),
        };
        match (together, host, gpus.len()) {
            (true, HostLayers::Rest, _) => {
                return Err(PlacementError::Tensor("remove cpu from --device"));
            }
            (true, HostLayers::These(1..), _) => {
                return Err(PlacementError::Tensor("remove --host-layers"));
            }
            (true, _, 0 | 1) => return Err(PlacementError::Tensor(TOO_FEW_DEVICES)),
            _ => {}
        }
        Ok(Some(RequestedDevices { gpus, host, together }))
    }

    /// Opens a session with tensor split. Returns it with the labels of the GPUs. `Ok(Err(why))`:
    /// the GPUs are of different kinds, or data that one GPU sends does not arrive at another.
    fn open_together(
        &self,
        engine: &Engine,
        gguf: &Arc<Gguf>,
        graph: &Graph,
        options: &OpenOptions,
    ) -> Result<Result<OpenedSession, String>, (PlacementError, bool)> {
        if options.stream {
            return Err((PlacementError::Stream, false));
        }
        let mut devices = vec![];
        for label in &self.gpus {
            let failed =
                |source: SessionError| PlacementError::Device { label: label.clone(), source };
            devices.push(engine.device(label).map_err(|e| (failed(e.into()), false))?);
        }
        match Session::on_gpus(engine, &devices, gguf, graph.clone(), options) {
            // Every GPU has every layer.
            Ok(session) => Ok(Ok((
                session,
                self.gpus.iter().map(|label| (label.clone(), graph.states.len())).collect(),
            ))),
            Err(Ok(why)) => Ok(Err(why)),
            Err(Err(source)) => {
                let lost = devices.iter().any(|d| d.memory().is_err());
                Err((PlacementError::Device { label: self.gpus.join(","), source }, lost))
            }
        }
    }

    /// Opens the devices and divides the layers. The CPU has the first layers. So the output
    /// matrix, the largest matrix, is on a GPU, which also chooses the token, and the rows of the
    /// embedding are read from host memory.
    pub fn choose(
        &self,
        engine: &Engine,
        graph: &Graph,
        options: &OpenOptions,
    ) -> Result<Vec<ChosenStage>, PlacementError> {
        if options.persistent == Persistence::On {
            return Err(PlacementError::Persistent);
        }
        if options.stream {
            return Err(PlacementError::Stream);
        }
        let layers = Layers::of(graph)?;
        let needs = needs(graph, &layers, options);
        let (mut devices, mut rooms) = (vec![], vec![]);
        for label in &self.gpus {
            let failed =
                |source: SessionError| PlacementError::Device { label: label.clone(), source };
            let device = engine.device(label).map_err(|e| failed(e.into()))?;
            let memory = plan_for(engine, graph, device.target(), options).map_err(failed)?.memory;
            let (free, _) = free_memory(&device).map_err(failed)?;
            let free = options.memory.map_or(free, |most| most.min(free));
            let bytes =
                free.saturating_sub(memory.rest).saturating_sub(RESERVED_BYTES.min(free / 16));
            // Memory is counted in the layout of the file. Some formats take more memory in the
            // layout of the device.
            let file: u64 = needs.iter().map(|n| n.weights).sum();
            let scale = |n: u64| {
                (u128::from(n) * u128::from(file) / u128::from(memory.weights.max(file).max(1)))
                    as u64
            };
            rooms.push(DeviceMemory { label: label.clone(), bytes: scale(bytes) });
            devices.push(device);
        }
        let (n, gpus) = (layers.len(), devices.len());
        let rest = |host: usize| needs.get(host..).unwrap_or_default();
        let host = match self.host {
            HostLayers::These(asked) if asked + gpus > n => {
                return Err(PlacementError::HostLayers { asked, layers: n, gpus });
            }
            HostLayers::These(asked) => asked,
            HostLayers::Rest => fewest(&needs, &rooms)?,
        };
        let counts = divide(rest(host), &rooms)?;
        let cpu = (host > 0).then(|| ChosenStage {
            label: "cpu".to_owned(),
            place: StageDevice::Cpu,
            layers: host,
        });
        let gpus = self.gpus.iter().zip(devices).zip(counts);
        let gpus = gpus.map(|((label, device), layers)| ChosenStage {
            label: label.clone(),
            place: StageDevice::Gpu(device),
            layers,
        });
        Ok(cpu.into_iter().chain(gpus).collect())
    }

    /// Opens a session as requested. Returns it with the label and number of layers of each stage.
    /// The flag is true if a device was lost.
    pub fn open(
        &self,
        engine: &Engine,
        gguf: &Arc<Gguf>,
        graph: &Graph,
        options: &OpenOptions,
    ) -> (Result<OpenedSession, PlacementError>, bool) {
        let mut apart = None;
        if self.together {
            match self.open_together(engine, gguf, graph, options) {
                Ok(Ok(opened)) => return (Ok(opened), false),
                Ok(Err(why)) => apart = Some(why),
                Err((error, lost)) => return (Err(error), lost),
            }
        }
        let chosen = match self.choose(engine, graph, options) {
            Ok(chosen) => chosen,
            Err(error) => return (Err(error), false),
        };
        let stages: Vec<(StageDevice, usize)> =
            chosen.iter().map(|c| (c.place.clone(), c.layers)).collect();
        let opened = Session::on_stages(engine, &stages, gguf, graph.clone(), options);
        let ended = |place: &StageDevice| match place {
            StageDevice::Gpu(device) => device.memory().is_err(),
            StageDevice::Cpu => false,
        };
        let lost = opened.is_err() && stages.iter().any(|(place, _)| ended(place));
        let labels: Vec<(String, usize)> =
            chosen.into_iter().map(|c| (c.label, c.layers)).collect();
        let all = || labels.iter().map(|(label, _)| label.as_str()).collect::<Vec<_>>().join(",");
        match opened {
            Ok(mut session) => {
                if let Some(why) = apart {
                    session
                        .remark(format!("--split layers is used instead of --split tensor: {why}"));
                }
                (Ok((session, labels)), false)
            }
            Err(source) => (Err(PlacementError::Device { label: all(), source }), lost),
        }
    }
}

/// The error message of `--split tensor` with one device.
const TOO_FEW_DEVICES: &str = "--device names fewer than two (example: --device cuda:0,cuda:1)";

/// A session, and the device label and number of layers of each stage.
pub type OpenedSession = (Session, Vec<(String, usize)>);

/// The minimum number of layers on the CPU with which the other layers fit on the GPUs.
fn fewest(needs: &[LayerNeed], rooms: &[DeviceMemory]) -> Result<usize, DivideError> {
    let mut last = DivideError::Few { layers: needs.len(), devices: rooms.len() };
    for host in 0..needs.len() {
        match divide(needs.get(host..).unwrap_or_default(), rooms) {
            Ok(_) => return Ok(host),
            Err(few @ DivideError::Few { .. }) if host == 0 => return Err(few),
            Err(DivideError::Few { .. }) => break,
            Err(room) => last = room,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_gets_the_fewest_possible_layers() {
        let need = LayerNeed { weights: 10, state: 0 };
        let room = |bytes| DeviceMemory { label: "rocm:0".into(), bytes };
        assert_eq!(fewest(&[need; 8], &[room(80)]), Ok(0));
        assert_eq!(fewest(&[need; 8], &[room(79)]), Ok(1));
        assert_eq!(fewest(&[need; 8], &[room(25), room(25)]), Ok(4));
        assert!(matches!(fewest(&[need; 8], &[room(9)]), Err(DivideError::Room { .. })));
        assert!(matches!(fewest(&[need; 1], &[room(9), room(9)]), Err(DivideError::Few { .. })));
    }

    fn wanted(
        device: &str,
        options: OpenOptions,
    ) -> Result<Option<RequestedDevices>, PlacementError> {
        let engine = Engine::new(kjit_engine::Config::new());
        RequestedDevices::of(&OpenOptions { device: device.parse().unwrap(), ..options }, &engine)
    }

    #[test]
    fn stages_exist_only_for_several_devices_cpu_first() {
        let plain = OpenOptions::default;
        let host = |n| OpenOptions { host_layers: Some(n), ..plain() };
        assert_eq!(wanted("cuda:1", plain()).unwrap(), None);
        assert_eq!(wanted("cuda:1", host(0)).unwrap(), None);
        assert_eq!(wanted("cpu", plain()).unwrap(), None);
        let of = |gpus: &[&str], host| {
            Some(RequestedDevices {
                gpus: gpus.iter().map(ToString::to_string).collect(),
                host,
                together: false,
            })
        };
        assert_eq!(wanted("cuda:1", host(3)).unwrap(), of(&["cuda:1"], HostLayers::These(3)));
        assert_eq!(
            wanted("cuda:1,rocm:0", plain()).unwrap(),
            of(&["cuda:1", "rocm:0"], HostLayers::These(0))
        );
        assert_eq!(wanted("cuda:1,cpu", plain()).unwrap(), of(&["cuda:1"], HostLayers::Rest));
        assert_eq!(wanted("cuda:1,cpu", host(2)).unwrap(), of(&["cuda:1"], HostLayers::These(2)));
        assert!(matches!(wanted("cpu", host(1)), Err(PlacementError::NoGpu(_))));
        let tensor = OpenOptions { split: Split::Tensor, ..plain() };
        assert!(wanted("cuda:0,cuda:1", tensor.clone()).unwrap().unwrap().together);
        for device in ["cuda:0", "cpu", "cuda:0,cuda:1,cpu"] {
            assert!(
                matches!(wanted(device, tensor.clone()), Err(PlacementError::Tensor(_))),
                "{device}"
            );
        }
        let host = OpenOptions { host_layers: Some(1), ..tensor };
        assert!(matches!(wanted("cuda:0,cuda:1", host), Err(PlacementError::Tensor(_))));
    }
}
