//! The native twins of `quire_bookie.bulk.plain`: the same names, arguments and results, byte for byte.
//!
//! Every function processes whole buffers, holds the GIL, and is stateless. Arguments are checked before they are used:
//! a wrong offset raises an exception and never causes a read or write outside a buffer.

mod acks;
mod adds;
mod batches;
mod buffers;
mod deliveries;
mod fields;
mod flushes;
mod messages;
mod reads;
mod sends;

use buffers::{new_bytes, Buffer};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PySlice};

const LENGTH_BYTES: usize = 4;
const PREFIX_BYTES: usize = 32;
const ADD_FIXED_BYTES: usize = 24;
const ADD_HEAD_BYTES: usize = 52;
const ENTRY_HEADER_BYTES: i64 = 32;
const VIEW_BYTES_MIN: usize = 16 * 1024;
const RECORD_HEAD_BYTES: usize = 24;
const PLACE_SIZE_BITS: u32 = 24;
const PLACE_KEPT: i64 = 1 << 62;
const CHUNK_BYTES: usize = 1 << 20;
const RUN_HEAD_BYTES: usize = 32;
const ENTRIES_KIND: u8 = 1;
const REPLY_BYTES: usize = 28;

fn be_i32(data: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(data[at..at + 4].try_into().unwrap())
}

fn be_i64(data: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(data[at..at + 8].try_into().unwrap())
}

/// Append the bodies of the adds from `position` on that continue one run; see `plain.take_adds`.
#[pyfunction]
fn take_adds(
    data: &Bound<'_, PyAny>,
    position: usize,
    frame_bytes_max: i64,
    first: i64,
    lac: i64,
    entries: &Bound<'_, PyList>,
) -> PyResult<(usize, usize, i64)> {
    let py = data.py();
    let buffer = Buffer::read(data)?;
    let bytes = buffer.bytes();
    let (mut position, mut lac, mut next, mut size_bytes) = (position, lac, first, 0usize);
    let prefix_at = position + LENGTH_BYTES;
    let mut view: Option<Bound<'_, PyMemoryView>> = None;
    while bytes.len() >= ADD_HEAD_BYTES && position <= bytes.len() - ADD_HEAD_BYTES {
        let length = be_i32(bytes, position) as i64;
        let prefix = &bytes[position + LENGTH_BYTES..position + LENGTH_BYTES + PREFIX_BYTES];
        if prefix != &bytes[prefix_at..prefix_at + PREFIX_BYTES]
            || be_i64(bytes, position + 36) != next
            || length < ADD_FIXED_BYTES as i64 + ENTRY_HEADER_BYTES
            || length > frame_bytes_max
        {
            break;
        }
        let stop = position + LENGTH_BYTES + length as usize;
        if stop > bytes.len() {
            break;
        }
        let start = position + LENGTH_BYTES + ADD_FIXED_BYTES;
        if stop - start < VIEW_BYTES_MIN {
            entries.append(PyBytes::new(py, &bytes[start..stop]))?;
        } else {
            if view.is_none() {
                view = Some(PyMemoryView::from(data)?);
            }
            let slice = PySlice::new(py, start as isize, stop as isize, 1);
            entries.append(view.as_ref().unwrap().get_item(slice)?)?;
        }
        lac = lac.max(be_i64(bytes, position + 44));
        size_bytes += stop - start;
        position = stop;
        match next.checked_add(1) {
            Some(following) => next = following,
            None => break, // no id follows the highest one
        }
    }
    Ok((position, size_bytes, lac))
}

/// Write the first `REPLY_BYTES` of a V2 response about an entry.
fn put_reply(out: &mut [u8], length: u32, header: u32, code: i32, ledger: i64, entry: i64) {
    out[0..4].copy_from_slice(&length.to_be_bytes());
    out[4..8].copy_from_slice(&header.to_be_bytes());
    out[8..12].copy_from_slice(&code.to_be_bytes());
    out[12..20].copy_from_slice(&ledger.to_be_bytes());
    out[20..28].copy_from_slice(&entry.to_be_bytes());
}

/// Encode one response with this length field for each entry from `first` on; see `plain.add_replies`.
#[pyfunction]
fn add_replies(py: Python<'_>, length: i32, header: u32, code: i32, ledger: i64, first: i64, count: usize) -> PyResult<Py<PyAny>> {
    if count > 1 && i64::try_from(count - 1).ok().and_then(|more| first.checked_add(more)).is_none() {
        return Err(PyValueError::new_err("answers beyond the highest id"));
    }
    let size = count.checked_mul(REPLY_BYTES).ok_or_else(|| PyValueError::new_err("too many answers"))?;
    new_bytes(py, size, |out| {
        for (index, answer) in out.chunks_exact_mut(REPLY_BYTES).enumerate() {
            put_reply(answer, length as u32, header, code, ledger, first + index as i64);
        }
        Ok(())
    })
}

/// Copy entries into a chunk; see `plain.store_entries`.
#[pyfunction]
fn store_entries(chunk: &Bound<'_, PyAny>, offset: usize, start: i64, entries: &Bound<'_, PyList>) -> PyResult<Py<PyAny>> {
    let py = chunk.py();
    let mut target = Buffer::write(chunk)?;
    let out = target.bytes_mut();
    let (mut offset, mut start) = (offset, start);
    new_bytes(py, entries.len() * 8, |places| {
        for (index, place) in places.chunks_exact_mut(8).enumerate() {
            let entry = entries.get_item(index)?;
            let source = Buffer::read(&entry)?;
            let body = source.bytes();
            let end = offset + body.len();
            if end > out.len() {
                return Err(PyIndexError::new_err("the entries do not fit the chunk"));
            }
            out[offset..end].copy_from_slice(body);
            place.copy_from_slice(&(start << PLACE_SIZE_BITS | body.len() as i64).to_ne_bytes());
            offset = end;
            start += body.len() as i64;
        }
        Ok(())
    })
}

/// Encode runs and append encoded records as the body of a journal group; see `plain.encode_body`.
#[pyfunction]
fn encode_body(py: Python<'_>, items: &Bound<'_, PyList>) -> PyResult<Py<PyAny>> {
    let mut heads: Vec<Option<(Bound<'_, PyList>, i64, i64, i64)>> = Vec::with_capacity(items.len());
    let mut size = 0usize;
    for item in items.iter() {
        if let Ok(record) = item.downcast::<PyBytes>() {
            size += record.as_bytes().len();
            heads.push(None);
            continue;
        }
        let found = item.getattr(pyo3::intern!(py, "entries"))?;
        let entries = match found.downcast_into::<PyList>() {
            Ok(list) => list,
            Err(error) => PyList::new(py, error.into_inner().try_iter()?.collect::<PyResult<Vec<_>>>()?)?,
        };
        let ledger: i64 = item.getattr(pyo3::intern!(py, "ledger"))?.extract()?;
        let first: i64 = item.getattr(pyo3::intern!(py, "first"))?.extract()?;
        let lac: i64 = item.getattr(pyo3::intern!(py, "lac"))?.extract()?;
        size += RUN_HEAD_BYTES + 4 * entries.len();
        for entry in entries.iter() {
            size += entry.len()?;
        }
        heads.push(Some((entries, ledger, first, lac)));
    }
    new_bytes(py, size, |out| {
        let mut at = 0usize;
        for (item, head) in items.iter().zip(heads.iter()) {
            match head {
                None => {
                    let record = item.downcast::<PyBytes>()?.as_bytes();
                    at = put(out, at, record)?;
                }
                Some((entries, ledger, first, lac)) => {
                    at = put_run(out, at, entries, *ledger, *first, *lac)?;
                }
            }
        }
        if at != out.len() {
            return Err(PyValueError::new_err("an entry changed its size"));
        }
        Ok(())
    })
}

fn put(out: &mut [u8], at: usize, data: &[u8]) -> PyResult<usize> {
    let end = at + data.len();
    if end > out.len() {
        return Err(PyIndexError::new_err("the bytes do not fit the buffer"));
    }
    out[at..end].copy_from_slice(data);
    Ok(end)
}

fn put_run(out: &mut [u8], at: usize, entries: &Bound<'_, PyList>, ledger: i64, first: i64, lac: i64) -> PyResult<usize> {
    let count = entries.len();
    let mut lengths_at = at + RUN_HEAD_BYTES;
    let mut body_at = lengths_at + 4 * count;
    if body_at > out.len() {
        return Err(PyIndexError::new_err("the bytes do not fit the buffer"));
    }
    out[at] = ENTRIES_KIND;
    out[at + 1..at + 4].fill(0);
    out[at + 4..at + 8].copy_from_slice(&(count as u32).to_le_bytes());
    out[at + 8..at + 16].copy_from_slice(&ledger.to_le_bytes());
    out[at + 16..at + 24].copy_from_slice(&first.to_le_bytes());
    out[at + 24..at + 32].copy_from_slice(&lac.to_le_bytes());
    for entry in entries.iter() {
        let source = Buffer::read(&entry)?;
        let body = source.bytes();
        out[lengths_at..lengths_at + 4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        lengths_at += 4;
        body_at = put(out, body_at, body)?;
    }
    Ok(body_at)
}

fn put_record(out: &mut [u8], at: usize, salt: u32, ledger: i64, id: i64, body: &[u8]) -> PyResult<usize> {
    let end = at + RECORD_HEAD_BYTES + body.len();
    if end > out.len() {
        return Err(PyIndexError::new_err("the records do not fit the target"));
    }
    let record = &mut out[at..end];
    record[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
    record[8..16].copy_from_slice(&ledger.to_le_bytes());
    record[16..24].copy_from_slice(&id.to_le_bytes());
    record[RECORD_HEAD_BYTES..].copy_from_slice(body);
    let crc = crc32c::crc32c_append(salt, &record[4..]);
    record[0..4].copy_from_slice(&crc.to_le_bytes());
    Ok(end)
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(acks::take_acks, module)?)?;
    module.add_function(wrap_pyfunction!(adds::encode_adds, module)?)?;
    module.add_function(wrap_pyfunction!(adds::encode_copies, module)?)?;
    module.add_function(wrap_pyfunction!(adds::check_entries, module)?)?;
    module.add_function(wrap_pyfunction!(adds::encode_stored, module)?)?;
    module.add_function(wrap_pyfunction!(adds::split_batch, module)?)?;
    module.add_function(wrap_pyfunction!(adds::count_batch, module)?)?;
    module.add_function(wrap_pyfunction!(adds::check_batch, module)?)?;
    module.add_function(wrap_pyfunction!(take_adds, module)?)?;
    module.add_function(wrap_pyfunction!(batches::take_add_rows, module)?)?;
    module.add_function(wrap_pyfunction!(batches::store_rows, module)?)?;
    module.add_function(wrap_pyfunction!(batches::row_replies, module)?)?;
    module.add_function(wrap_pyfunction!(add_replies, module)?)?;
    module.add_function(wrap_pyfunction!(store_entries, module)?)?;
    module.add_function(wrap_pyfunction!(encode_body, module)?)?;
    module.add_function(wrap_pyfunction!(sends::take_sends, module)?)?;
    module.add_function(wrap_pyfunction!(sends::encode_receipts, module)?)?;
    module.add_function(wrap_pyfunction!(reads::take_reads, module)?)?;
    module.add_function(wrap_pyfunction!(reads::check_records, module)?)?;
    module.add_function(wrap_pyfunction!(reads::read_replies, module)?)?;
    module.add_function(wrap_pyfunction!(reads::batch_bodies, module)?)?;
    module.add_function(wrap_pyfunction!(messages::join_payloads, module)?)?;
    module.add_function(wrap_pyfunction!(messages::join_batch, module)?)?;
    module.add_function(wrap_pyfunction!(messages::message_columns, module)?)?;
    module.add_function(wrap_pyfunction!(deliveries::plain_heads, module)?)?;
    module.add_function(wrap_pyfunction!(deliveries::message_frames, module)?)?;
    module.add_function(wrap_pyfunction!(flushes::ledger_runs, module)?)?;
    module.add_function(wrap_pyfunction!(flushes::run_segments, module)?)?;
    module.add_function(wrap_pyfunction!(flushes::place_runs, module)?)?;
    module.add_function(wrap_pyfunction!(flushes::join_spans, module)?)?;
    module.add_function(wrap_pyfunction!(flushes::encode_runs, module)?)?;
    module.add_function(wrap_pyfunction!(flushes::merge_blocks, module)?)?;
    Ok(())
}
