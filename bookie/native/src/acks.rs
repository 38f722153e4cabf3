//! The plain ACKs of a received buffer. Specified in `plain_acks`.

use crate::buffers::Buffer;
use crate::fields::Fields;
use pyo3::prelude::*;
use pyo3::types::PyList;

const HEAD: &[u8] = b"\x08\x0a\x52";
const ACK_BYTES_MIN: usize = 8 + 4 + 4 + 6;

pub fn be_u32(data: &[u8], at: usize) -> u64 {
    u32::from_be_bytes(data[at..at + 4].try_into().unwrap()) as u64
}

/// Append the ids of one command to `ids` and return its consumer; None, and `ids` as before, for another form.
fn read_ack(command: &[u8], ids: &mut Vec<(u64, u64)>) -> Option<u64> {
    let before = ids.len();
    let found = read_fields(command, ids);
    if found.is_none() {
        ids.truncate(before);
    }
    found
}

fn read_fields(command: &[u8], ids: &mut Vec<(u64, u64)>) -> Option<u64> {
    let mut outer = Fields::of(command.strip_prefix(HEAD)?);
    let mut ack = Fields::of(outer.part()?);
    if !outer.is_done() {
        return None;
    }
    ack.expect(0x08)?;
    let consumer = ack.positive()?;
    ack.expect(0x10)?;
    ack.expect(0x00)?;
    let before = ids.len();
    while !ack.is_done() {
        ack.expect(0x1A)?;
        let mut id = Fields::of(ack.part()?);
        id.expect(0x08)?;
        let ledger = id.positive()?;
        id.expect(0x10)?;
        let entry = id.positive()?;
        if !id.is_done() {
            return None;
        }
        ids.push((ledger, entry));
    }
    (ids.len() > before).then_some(consumer)
}

/// Decode consecutive plain ACKs of one consumer; see `plain_acks.take_acks`.
#[pyfunction]
pub fn take_acks<'py>(
    data: &Bound<'py, PyAny>,
    position: usize,
    frame_bytes_max: u64,
) -> PyResult<(usize, i64, Bound<'py, PyList>)> {
    let buffer = Buffer::read(data)?;
    let bytes = buffer.bytes();
    let (mut position, mut consumer) = (position, -1i64);
    let mut ids: Vec<(u64, u64)> = Vec::new();
    while position.saturating_add(ACK_BYTES_MIN) <= bytes.len() {
        let (total, size) = (be_u32(bytes, position), be_u32(bytes, position + 4));
        if total != size + 4 || total > frame_bytes_max || total > (bytes.len() - position - 4) as u64 {
            break;
        }
        let end = position + 4 + total as usize;
        let before = ids.len();
        let Some(found) = read_ack(&bytes[position + 8..end], &mut ids) else { break };
        if before > 0 && found as i64 != consumer {
            ids.truncate(before);
            break;
        }
        consumer = found as i64; // a varint of at most nine bytes is below 2^63
        position = end;
    }
    Ok((position, consumer, PyList::new(data.py(), ids)?))
}
