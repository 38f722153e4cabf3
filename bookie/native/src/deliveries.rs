//! The steps of a broker from stored entries to MESSAGE frames. Specified in `plain_deliveries`.

use crate::buffers::{new_bytes, Buffer};
use crate::messages::{peeked, Metadata};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

pub const MESSAGES_MAX: u32 = (1 << 14) - 1;
const BROKER_MAGIC: [u8; 2] = [0x0e, 0x02];
const COMMAND: [u8; 3] = [0x08, 0x09, 0x4a];

/// The input of the hash of Key_Shared; None for a form that is left to the general parser.
fn sticky_key(py: Python<'_>, of: &Metadata<'_>) -> Option<Py<PyBytes>> {
    let key = match (of.message.ordering_key, of.message.key) {
        (Some(key), _) => PyBytes::new(py, key),
        (None, Some(_)) if of.message.key_is_base64 => return None,
        (None, Some(key)) => PyBytes::new(py, key),
        (None, None) => {
            let mut made = of.producer.to_vec();
            made.extend_from_slice(format!("-{}", of.sequence_id).as_bytes());
            PyBytes::new(py, &made)
        }
    };
    Some(key.unbind())
}

/// Return the numbers of messages of plain entries; see `plain_deliveries.plain_heads`.
#[pyfunction]
pub fn plain_heads<'py>(
    py: Python<'py>,
    entries: &Bound<'py, PyList>,
    wants_keys: bool,
) -> PyResult<(Vec<u32>, Vec<Option<Py<PyBytes>>>)> {
    let (mut counts, mut keys) = (Vec::with_capacity(entries.len()), Vec::new());
    for entry in entries.iter() {
        let buffer = Buffer::read(&entry)?;
        let found = peeked(buffer.bytes()).map(|(found, _, _)| found).filter(|found| !found.is_delayed);
        let mut count = found.as_ref().map_or(0, |found| found.batch.unwrap_or(1));
        if count > MESSAGES_MAX {
            count = 0;
        }
        if wants_keys {
            let key = found.filter(|_| count > 0).and_then(|found| sticky_key(py, &found));
            if key.is_none() {
                count = 0;
            }
            keys.push(key);
        }
        counts.push(count);
    }
    Ok((counts, keys))
}

pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push(value as u8 & 0x7f | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub fn varint_bytes(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// One delivery: ids, how often it was redelivered, words of its ack set, epoch of the consumer.
struct Head {
    ledger: u64,
    entry: u64,
    redelivered: u64,
    ack_set: Vec<u64>,
    epoch: Option<u64>,
}

/// A number of 64 bits, signed or not, as the encoding has it.
pub fn number(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    value.extract::<i64>().map(|number| number as u64).or_else(|_| value.extract())
}

impl Head {
    fn of(delivery: &Bound<'_, PyTuple>) -> PyResult<Head> {
        let position = delivery.get_borrowed_item(0)?;
        let position = position.downcast::<PyTuple>()?;
        let (ack_set, epoch) = (delivery.get_borrowed_item(3)?, delivery.get_borrowed_item(4)?);
        Ok(Head {
            ledger: number(&*position.get_borrowed_item(0)?)?,
            entry: number(&*position.get_borrowed_item(1)?)?,
            redelivered: number(&*delivery.get_borrowed_item(2)?)?,
            ack_set: if ack_set.is_none() {
                Vec::new()
            } else {
                ack_set.try_iter()?.map(|word| number(&word?)).collect::<PyResult<_>>()?
            },
            epoch: if epoch.is_none() { None } else { Some(number(&epoch)?) },
        })
    }

    /// Append the head of a frame; `body` is scratch space.
    fn put(&self, out: &mut Vec<u8>, body: &mut Vec<u8>, consumer: &[u8], partition: &[u8], size: usize) -> PyResult<()> {
        body.clear();
        body.extend_from_slice(consumer);
        put_varint(body, (2 + varint_bytes(self.ledger) + varint_bytes(self.entry) + partition.len()) as u64);
        body.push(0x08);
        put_varint(body, self.ledger);
        body.push(0x10);
        put_varint(body, self.entry);
        body.extend_from_slice(partition);
        if self.redelivered != 0 {
            body.push(0x18);
            put_varint(body, self.redelivered);
        }
        for word in &self.ack_set {
            body.push(0x20);
            put_varint(body, *word);
        }
        if let Some(epoch) = self.epoch {
            body.push(0x28);
            put_varint(body, epoch);
        }
        let command = COMMAND.len() + varint_bytes(body.len() as u64) + body.len();
        let total = u32::try_from(4 + command + size).map_err(|_| PyValueError::new_err("a frame above 4 GiB"))?;
        out.extend_from_slice(&total.to_be_bytes());
        out.extend_from_slice(&(command as u32).to_be_bytes());
        out.extend_from_slice(&COMMAND);
        put_varint(out, body.len() as u64);
        out.extend_from_slice(body);
        Ok(())
    }
}

/// Encode the MESSAGE frames of one consumer; see `plain_deliveries.message_frames`.
#[pyfunction]
pub fn message_frames<'py>(
    py: Python<'py>,
    consumer: &[u8],
    partition: &[u8],
    deliveries: &Bound<'py, PyAny>,
    strips: bool,
    joined_bytes_max: usize,
) -> PyResult<(Bound<'py, PyList>, usize)> {
    let count = deliveries.len()?;
    let mut found: Vec<(Buffer, Bound<'py, PyAny>, usize)> = Vec::with_capacity(count);
    let (mut heads, mut ends, mut body) = (Vec::with_capacity(48 * count), Vec::with_capacity(count), Vec::new());
    let mut size = 0usize;
    for delivery in deliveries.try_iter()? {
        let delivery = delivery?;
        let delivery = delivery.downcast::<PyTuple>()?;
        let data = delivery.get_item(1)?;
        let buffer = Buffer::read(&data)?;
        let bytes = buffer.bytes();
        let mut skipped = 0;
        if strips && bytes.len() >= 6 && bytes[..2] == BROKER_MAGIC {
            skipped = bytes.len().min(6 + u32::from_be_bytes(bytes[2..6].try_into().unwrap()) as usize);
        }
        let rest = bytes.len() - skipped;
        Head::of(delivery)?.put(&mut heads, &mut body, consumer, partition, rest)?;
        ends.push(heads.len());
        size += rest;
        found.push((buffer, data, skipped));
    }
    if size <= joined_bytes_max.saturating_mul(count) {
        let joined = new_bytes(py, heads.len() + size, |out| {
            let (mut at, mut begun) = (0usize, 0usize);
            for ((buffer, _, skipped), end) in found.iter().zip(&ends) {
                for part in [&heads[begun..*end], &buffer.bytes()[*skipped..]] {
                    out[at..at + part.len()].copy_from_slice(part);
                    at += part.len();
                }
                begun = *end;
            }
            Ok(())
        })?;
        return Ok((PyList::new(py, [joined])?, size));
    }
    let parts = PyList::empty(py);
    let mut begun = 0usize;
    for ((_, data, skipped), end) in found.iter().zip(&ends) {
        parts.append(PyBytes::new(py, &heads[begun..*end]))?;
        if *skipped == 0 {
            parts.append(data)?;
        } else {
            let view = pyo3::types::PyMemoryView::from(data)?;
            let slice = pyo3::types::PySlice::new(py, *skipped as isize, isize::MAX, 1);
            parts.append(view.get_item(slice)?)?;
        }
        begun = *end;
    }
    Ok((parts, size))
}
