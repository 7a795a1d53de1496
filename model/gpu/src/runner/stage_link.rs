//! The link from the previous stage.

use kjit_engine::{CopyEvents, DeviceBuffer, PinnedBuffer, Stream};
use kjit_exec::{HiddenStates, Runner, SessionError, TokenSpan};

/// Elements of the page-locked staging memory.
pub(super) const STAGING: usize = 4 << 20;

/// The previous stage, and the link from it.
pub(super) struct PreviousStage {
    pub stage: Box<dyn Runner>,
    pub(super) way: StageLink,
    /// Elements of a hidden state.
    pub(super) width: usize,
    /// Staging memory of this device, if the link is through the host.
    pub(super) here: PinnedBuffer<f32>,
    /// Staging memory of the previous device, if the link is through the host.
    pub(super) there: Option<PinnedBuffer<f32>>,
}

/// The link from the previous stage.
pub(super) enum StageLink {
    /// Copies from device to device.
    Peer(CopyEvents),
    /// Copies through host memory.
    Host,
}

impl PreviousStage {
    /// Runs tokens in the previous stage and copies their hidden states to `to`.
    pub(super) fn rows(
        &mut self,
        pieces: &[TokenSpan<'_>],
        stream: &Stream,
        to: &DeviceBuffer<f32>,
    ) -> Result<(), SessionError> {
        let PreviousStage { stage, way, width, here, there } = self;
        let room = here.len();
        stage.rows(pieces, &mut |first, made| {
            let at = first * *width;
            match (made, &*way, &*there) {
                (HiddenStates::Host(rows), ..) => {
                    for (i, rows) in rows.chunks(room).enumerate() {
                        let here = here.slice(..rows.len())?;
                        here.write(|to| to.copy_from_slice(rows))?;
                        let at = at + i * room;
                        stream.copy_in(&here, &to.slice(at..at + rows.len())?)?;
                    }
                    Ok(())
                }
                (HiddenStates::Device(from, rows), StageLink::Peer(crossing), _) => Ok(
                    stream.copy_between(from, &rows, &to.slice(at..at + rows.len())?, crossing)?
                ),
                (HiddenStates::Device(from, rows), StageLink::Host, Some(there)) => {
                    let mut done = 0;
                    while done < rows.len() {
                        let n = there.len().min(rows.len() - done);
                        let (here, there) = (here.slice(..n)?, there.slice(..n)?);
                        from.copy_out(&rows.slice(done..done + n)?, &there)?;
                        there.read(|rows| here.write(|to| to.copy_from_slice(rows)))??;
                        stream.copy_in(&here, &to.slice(at + done..at + done + n)?)?;
                        done += n;
                    }
                    Ok(())
                }
                (HiddenStates::Device(..), StageLink::Host, None) => {
                    Err(SessionError::Device("rows came from no device".to_owned()))
                }
            }
        })
    }
}
