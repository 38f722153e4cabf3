//! The plain SENDs of a received buffer, and the receipts of stored ones. Specified in `plain_sends`.

use crate::acks::be_u32;
use crate::deliveries::{number, put_varint, varint_bytes, MESSAGES_MAX};
use crate::fields::Fields;
use crate::messages::{opened, CHECKSUM_MAGIC};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PySlice, PyTuple};

const HEAD: &[u8] = b"\x08\x06\x32";
const SEND_BYTES_MIN: usize = 8 + 4 + 4;

/// The fields of a plain SEND.
struct Plain {
    producer: u64,
    sequence: u64,
    messages: u32,
    highest: Option<u64>,
}

fn read_send(command: &[u8]) -> Option<Plain> {
    let mut outer = Fields::of(command.strip_prefix(HEAD)?);
    let mut send = Fields::of(outer.part()?);
    if !outer.is_done() {
        return None;
    }
    send.expect(0x08)?;
    let producer = send.positive()?;
    send.expect(0x10)?;
    let mut found = Plain { producer, sequence: send.positive()?, messages: 1, highest: None };
    if send.expect(0x18).is_some() {
        found.messages = send.small().filter(|count| (1..=MESSAGES_MAX).contains(count))?;
    }
    if send.expect(0x30).is_some() {
        found.highest = Some(send.positive()?);
    }
    send.is_done().then_some(found)
}

/// Whether an entry has a valid checksum and metadata that every client can read.
fn is_sound(entry: &[u8]) -> bool {
    entry.starts_with(&CHECKSUM_MAGIC) && opened(entry).is_some_and(|(found, _)| found.batch.unwrap_or(1) <= MESSAGES_MAX)
}

/// Decode consecutive plain SENDs of one producer; see `plain_sends.take_sends`.
#[pyfunction]
pub fn take_sends<'py>(
    data: &Bound<'py, PyBytes>,
    position: usize,
    frame_bytes_max: u64,
) -> PyResult<(usize, i64, Bound<'py, PyList>)> {
    let py = data.py();
    let bytes = data.as_bytes();
    let view = PyMemoryView::from(data.as_any())?;
    let sends = PyList::empty(py);
    let (mut position, mut producer) = (position, -1i64);
    while position.saturating_add(SEND_BYTES_MIN) <= bytes.len() {
        let (total, size) = (be_u32(bytes, position), be_u32(bytes, position + 4));
        if size + 4 > total || total > frame_bytes_max || total > (bytes.len() - position - 4) as u64 {
            break;
        }
        let (command_end, end) = (position + 8 + size as usize, position + 4 + total as usize);
        let Some(found) = read_send(&bytes[position + 8..command_end]) else { break };
        if producer >= 0 && found.producer as i64 != producer {
            break;
        }
        producer = found.producer as i64; // a varint of at most nine bytes is below 2^63
        let slice = PySlice::new(py, command_end as isize, end as isize, 1);
        let entry = view.get_item(slice)?;
        let sound = is_sound(&bytes[command_end..end]);
        sends.append((found.sequence, found.highest, found.messages, false, false, entry, sound))?;
        position = end;
    }
    Ok((position, producer, sends))
}

/// Encode the SEND_RECEIPT frames of one producer; see `plain_sends.encode_receipts`.
#[pyfunction]
pub fn encode_receipts<'py>(
    py: Python<'py>,
    producer_id: &Bound<'py, PyAny>,
    receipts: &Bound<'py, PyList>,
) -> PyResult<Bound<'py, PyBytes>> {
    let producer = number(producer_id)?;
    let mut out = Vec::with_capacity(48 * receipts.len());
    for receipt in receipts.iter() {
        let receipt = receipt.downcast::<PyTuple>()?;
        let mut fields = [0u64; 4];
        for (field, value) in fields.iter_mut().zip(receipt.iter_borrowed()) {
            *field = number(&value)?;
        }
        let [sequence, highest, ledger, entry] = fields;
        let id = 2 + varint_bytes(ledger) + varint_bytes(entry);
        let body = 4 + varint_bytes(producer) + varint_bytes(sequence) + 1 + id + varint_bytes(highest);
        let command = 4 + body; // each of the sizes takes one byte: a receipt is always shorter than 128 bytes
        out.extend_from_slice(&(command as u32 + 4).to_be_bytes());
        out.extend_from_slice(&(command as u32).to_be_bytes());
        out.extend_from_slice(&[0x08, 0x07, 0x3a, body as u8, 0x08]);
        put_varint(&mut out, producer);
        out.push(0x10);
        put_varint(&mut out, sequence);
        out.extend_from_slice(&[0x1a, id as u8, 0x08]);
        put_varint(&mut out, ledger);
        out.push(0x10);
        put_varint(&mut out, entry);
        out.push(0x20);
        put_varint(&mut out, highest);
    }
    Ok(PyBytes::new(py, &out))
}
