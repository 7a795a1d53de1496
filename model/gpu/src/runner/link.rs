//! The link from the previous stage.

use kjit_engine::{Crossing, DeviceBuffer, PinnedBuffer, Stream};
use kjit_exec::{Made, Piece, Runner, SessionError};

/// Elements of the page-locked staging memory.
pub(super) const STAGING: usize = 4 << 20;

/// The previous stage, and the link from it.
pub(super) struct Before {
    pub stage: Box<dyn Runner>,
    pub(super) way: Way,
    /// Elements of a hidden state.
    pub(super) width: usize,
    /// Staging memory of this device, if the link is through the host.
    pub(super) here: PinnedBuffer<f32>,
    /// Staging memory of the previous device, if the link is through the host.
    pub(super) there: Option<PinnedBuffer<f32>>,
}

/// The link from the previous stage.
pub(super) enum Way {
    /// Copies from device to device.
    Peer(Crossing),
    /// Copies through host memory.
    Host,
}

impl Before {
    /// Runs tokens in the previous stage and copies their hidden states to `to`.
    pub(super) fn rows(
        &mut self,
        pieces: &[Piece<'_>],
        stream: &Stream,
        to: &DeviceBuffer<f32>,
    ) -> Result<(), SessionError> {
        let Before { stage, way, width, here, there } = self;
        let room = here.len();
        stage.rows(pieces, &mut |first, made| {
            let at = first * *width;
            match (made, &*way, &*there) {
                (Made::Host(rows), ..) => {
                    for (i, rows) in rows.chunks(room).enumerate() {
                        let here = here.slice(..rows.len())?;
                        here.write(|to| to.copy_from_slice(rows))?;
                        let at = at + i * room;
                        stream.copy_in(&here, &to.slice(at..at + rows.len())?)?;
                    }
                    Ok(())
                }
                (Made::Device(from, rows), Way::Peer(crossing), _) => Ok(stream.copy_between(
                    from,
                    &rows,
                    &to.slice(at..at + rows.len())?,
                    crossing,
                )?),
                (Made::Device(from, rows), Way::Host, Some(there)) => {
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
                (Made::Device(..), Way::Host, None) => {
                    Err(SessionError::Device("rows came from no device".to_owned()))
                }
            }
        })
    }
}
