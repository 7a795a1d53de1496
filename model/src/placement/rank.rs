//! `--split ranks`: each of several processes has one device and a share of each layer.

use super::PlacementError;
use crate::device::DeviceChoice;
use crate::gguf::Gguf;
use crate::graph::Graph;
use crate::ranks::Ranks;
use crate::session::{OpenOptions, Persistence, Session, SessionError};
use kjit_engine::Engine;
use std::sync::Arc;

/// Opens a session with the share of this process. Returns it with the label of its device and its
/// rank.
pub(crate) fn open_rank(
    engine: &Engine,
    gguf: &Arc<Gguf>,
    graph: &Graph,
    options: &OpenOptions,
) -> Result<(Session, String, Ranks), PlacementError> {
    let refused = match &options.device {
        DeviceChoice::Cpu | DeviceChoice::Several(_) => {
            Some("each process has one GPU: name one GPU with --device, or remove --device")
        }
        _ if options.host_layers.is_some_and(|n| n > 0) => Some("remove --host-layers"),
        _ if options.host_experts > 0 => Some("remove --host-experts"),
        _ if options.host_ffn.is_some_and(|n| n > 0) => Some("remove --host-ffn"),
        _ if options.stream => Some("remove --stream"),
        _ if options.persistent == Persistence::On => Some("remove --persistent on"),
        _ => None,
    };
    if let Some(why) = refused {
        return Err(PlacementError::Ranks(format!("--split ranks: {why}")));
    }
    let ranks = Ranks::from_env().map_err(|e| PlacementError::Ranks(e.to_string()))?;
    let label = match &options.device {
        DeviceChoice::Auto => of_this_machine(engine, ranks.local)?,
        named => named.to_string(),
    };
    let failed = |source: SessionError| PlacementError::Device { label: label.clone(), source };
    let device = engine.device(&label).map_err(|e| failed(e.into()))?;
    let session =
        Session::on_rank(engine, &device, gguf, graph.clone(), options, &ranks).map_err(failed)?;
    Ok((session, label, ranks))
}

/// The device of the process with this number on its machine. If the launcher makes only one device
/// visible to each process, each process uses its first device.
fn of_this_machine(engine: &Engine, local: usize) -> Result<String, PlacementError> {
    let here = engine.devices();
    let none = || {
        PlacementError::Ranks(format!(
            "--split ranks needs a GPU, but none was found: {}",
            here.why_none()
        ))
    };
    let first = here.preferred().ok_or_else(none)?;
    let of_a_kind: Vec<_> = here.devices.iter().filter(|d| d.vendor == first.vendor).collect();
    match (of_a_kind.len(), of_a_kind.get(local)) {
        (1, _) => Ok(first.label()),
        (_, Some(device)) => Ok(device.label()),
        (n, None) => Err(PlacementError::Ranks(format!(
            "--split ranks: process {local} of this machine has no GPU: only {n} were found"
        ))),
    }
}
