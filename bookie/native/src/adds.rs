//! The client's steps: encodes V2 adds with CRC32C digests in one buffer, and verifies batch responses.

use crate::{be_i32, be_i64};
use crate::buffers::{new_bytes, Buffer};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyMemoryView, PySlice, PyTuple};

const HEADER_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 4;

/// Add the buffers of one payload: the object itself, or the parts in a tuple. Objects are kept with their views.
fn add_parts<'py>(payload: Bound<'py, PyAny>, parts: &mut Vec<(Buffer, Bound<'py, PyAny>)>) -> PyResult<usize> {
    let mut size = 0usize;
    if let Ok(tuple) = payload.downcast::<PyTuple>() {
        for part in tuple.iter() {
            let view = Buffer::read(&part)?;
            size += view.bytes().len();
            parts.push((view, part));
        }
    } else {
        let view = Buffer::read(&payload)?;
        size += view.bytes().len();
        parts.push((view, payload));
    }
    Ok(size)
}

/// Encode the frames of some entries and compute the ledger's new length; see `plain_adds.encode_adds`.
#[pyfunction]
pub fn encode_adds(
    prefix: &[u8],
    ledger: i64,
    first: i64,
    lac: i64,
    length: i64,
    size_max: usize,
    payloads: &Bound<'_, PyAny>,
) -> PyResult<(Py<PyAny>, i64)> {
    let py = payloads.py();
    let mut parts: Vec<(Buffer, Bound<'_, PyAny>)> = Vec::new();
    let mut entries: Vec<(usize, usize)> = Vec::new(); // the payload's size, and the end of its parts
    let fixed = prefix.len() + HEADER_BYTES + CHECKSUM_BYTES;
    let mut total = 0usize;
    {
        let mut add = |payload| -> PyResult<()> {
            let size = add_parts(payload, &mut parts)?;
            if size > size_max {
                return Err(PyOverflowError::new_err(size));
            }
            if fixed + size > i32::MAX as usize {
                return Err(PyValueError::new_err("a frame exceeds the protocol's largest length"));
            }
            entries.push((size, parts.len()));
            total += 4 + fixed + size;
            Ok(())
        };
        if let Ok(list) = payloads.downcast::<PyList>() {
            for payload in list.iter() {
                add(payload)?;
            }
        } else if let Ok(tuple) = payloads.downcast::<PyTuple>() {
            for payload in tuple.iter() {
                add(payload)?;
            }
        } else {
            return Err(PyTypeError::new_err("payloads must be a list or a tuple"));
        }
    }
    let mut length = length;
    let frames = new_bytes(py, total, |out| {
        let (mut at, mut entry, mut part) = (0usize, first, 0usize);
        for (index, (size, end)) in entries.iter().enumerate() {
            length = length.checked_add(*size as i64).ok_or_else(|| PyValueError::new_err("the ledger is too long"))?;
            if index > 0 {
                entry = entry.checked_add(1).ok_or_else(|| PyValueError::new_err("the entries exceed the highest id"))?;
            }
            let frame = &mut out[at..at + 4 + fixed + size];
            frame[..4].copy_from_slice(&((fixed + size) as i32).to_be_bytes());
            let (head, body) = frame[4..].split_at_mut(fixed);
            head[..prefix.len()].copy_from_slice(prefix);
            let header = &mut head[prefix.len()..];
            for (place, number) in header.chunks_exact_mut(8).zip([ledger, entry, lac, length]) {
                place.copy_from_slice(&number.to_be_bytes());
            }
            let mut crc = crc32c::crc32c(&header[..HEADER_BYTES]);
            let mut to = 0usize;
            for (view, _) in &parts[part..*end] {
                let bytes = view.bytes();
                let place = &mut body[to..to + bytes.len()];
                place.copy_from_slice(bytes);
                crc = crc32c::crc32c_append(crc, place);
                to += bytes.len();
            }
            header[HEADER_BYTES..].copy_from_slice(&crc.to_be_bytes());
            part = *end;
            at += 4 + fixed + size;
        }
        Ok(())
    })?;
    Ok((frames, length))
}

/// Encode the frames of entries as they were read; see `plain_adds.encode_copies`.
#[pyfunction]
pub fn encode_copies(prefix: &[u8], ledger: i64, entries: &Bound<'_, PyList>) -> PyResult<Py<PyAny>> {
    let py = entries.py();
    let fixed = prefix.len() + HEADER_BYTES + CHECKSUM_BYTES;
    let mut found: Vec<([i64; 3], Buffer, Bound<'_, PyAny>)> = Vec::with_capacity(entries.len());
    let mut total = 0usize;
    for entry in entries.iter() {
        let numbers = [
            entry.getattr(pyo3::intern!(py, "entry_id"))?.extract()?,
            entry.getattr(pyo3::intern!(py, "lac"))?.extract()?,
            entry.getattr(pyo3::intern!(py, "length"))?.extract()?,
        ];
        let payload = entry.getattr(pyo3::intern!(py, "payload"))?;
        let view = Buffer::read(&payload)?;
        let size = view.bytes().len();
        if fixed + size > i32::MAX as usize {
            return Err(PyValueError::new_err("a frame exceeds the protocol's largest length"));
        }
        total += 4 + fixed + size;
        found.push((numbers, view, payload));
    }
    new_bytes(py, total, |out| {
        let mut at = 0usize;
        for ([entry, lac, length], view, _) in &found {
            let bytes = view.bytes();
            let frame = &mut out[at..at + 4 + fixed + bytes.len()];
            frame[..4].copy_from_slice(&((fixed + bytes.len()) as i32).to_be_bytes());
            let (head, body) = frame[4..].split_at_mut(fixed);
            head[..prefix.len()].copy_from_slice(prefix);
            let header = &mut head[prefix.len()..];
            for (place, number) in header.chunks_exact_mut(8).zip([ledger, *entry, *lac, *length]) {
                place.copy_from_slice(&number.to_be_bytes());
            }
            body.copy_from_slice(bytes);
            let crc = crc32c::crc32c_append(crc32c::crc32c(&header[..HEADER_BYTES]), body);
            header[HEADER_BYTES..].copy_from_slice(&crc.to_be_bytes());
            at += 4 + fixed + bytes.len();
        }
        Ok(())
    })
}

/// Return whether a stored entry has these ids and matches its CRC32C.
fn is_valid(data: &[u8], ledger: i64, entry: i64) -> bool {
    if data.len() < HEADER_BYTES + CHECKSUM_BYTES || be_i64(data, 0) != ledger || be_i64(data, 8) != entry {
        return false;
    }
    let payload = &data[HEADER_BYTES + CHECKSUM_BYTES..];
    let crc = crc32c::crc32c_append(crc32c::crc32c(&data[..HEADER_BYTES]), payload);
    data[HEADER_BYTES..HEADER_BYTES + CHECKSUM_BYTES] == crc.to_be_bytes()
}

/// Return LAC and length of the valid leading entries; see `plain_adds.check_entries`.
#[pyfunction]
pub fn check_entries(ledger: i64, first: i64, entries: &Bound<'_, PyList>) -> PyResult<Vec<i64>> {
    let mut found = Vec::with_capacity(2 * entries.len());
    let mut wanted = Some(first);
    for entry in entries.iter() {
        let view = Buffer::read(&entry)?;
        let data = view.bytes();
        if !wanted.is_some_and(|entry| is_valid(data, ledger, entry)) {
            break;
        }
        found.push(be_i64(data, 16));
        found.push(be_i64(data, 24));
        wanted = wanted.and_then(|entry| entry.checked_add(1));
    }
    Ok(found)
}

/// Encode the frames of unchanged stored entries; see `plain_adds.encode_stored`.
#[pyfunction]
pub fn encode_stored(prefix: &[u8], entries: &Bound<'_, PyList>) -> PyResult<Py<PyAny>> {
    let py = entries.py();
    let mut found: Vec<(Buffer, Bound<'_, PyAny>)> = Vec::with_capacity(entries.len());
    let mut total = 0usize;
    for entry in entries.iter() {
        let view = Buffer::read(&entry)?;
        let size = prefix.len() + view.bytes().len();
        if size > i32::MAX as usize {
            return Err(PyValueError::new_err("a frame exceeds the protocol's largest length"));
        }
        total += 4 + size;
        found.push((view, entry));
    }
    new_bytes(py, total, |out| {
        let mut at = 0usize;
        for (view, _) in &found {
            let bytes = view.bytes();
            let (fixed, end) = (at + 4 + prefix.len(), at + 4 + prefix.len() + bytes.len());
            out[at..at + 4].copy_from_slice(&((end - at - 4) as i32).to_be_bytes());
            out[at + 4..fixed].copy_from_slice(prefix);
            out[fixed..end].copy_from_slice(bytes);
            at = end;
        }
        Ok(())
    })
}

/// Return views of the entries of a batch; see `plain_adds.split_batch`.
#[pyfunction]
pub fn split_batch<'py>(body: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let py = body.py();
    let buffer = Buffer::read(body)?;
    let bytes = buffer.bytes();
    let view = PyMemoryView::from(body)?;
    let found = PyList::empty(py);
    for (start, end) in batch_edges(bytes)? {
        found.append(view.get_item(PySlice::new(py, start as isize, end as isize, 1))?)?;
    }
    Ok(found)
}

/// Return start and end of each entry of a batch. ValueError if an entry extends beyond the end.
pub fn batch_edges(bytes: &[u8]) -> PyResult<Vec<(usize, usize)>> {
    let mut found = Vec::new();
    let mut at = 0usize;
    while at < bytes.len() {
        let start = at + 4;
        let size = if start <= bytes.len() { be_i32(bytes, at) } else { -1 };
        if size < 0 || size as usize > bytes.len() - start {
            return Err(PyValueError::new_err("an entry runs over the end of its batch"));
        }
        at = start + size as usize;
        found.push((start, at));
    }
    Ok(found)
}

/// Return how many entries a batch has; see `plain_adds.count_batch`.
#[pyfunction]
pub fn count_batch(body: &Bound<'_, PyAny>) -> PyResult<usize> {
    let buffer = Buffer::read(body)?;
    Ok(batch_edges(buffer.bytes())?.len())
}

/// Return how many leading entries of a batch are valid; see `plain_adds.check_batch`.
#[pyfunction]
pub fn check_batch(ledger: i64, first: i64, body: &Bound<'_, PyAny>) -> PyResult<usize> {
    let buffer = Buffer::read(body)?;
    let bytes = buffer.bytes();
    let mut wanted = Some(first);
    let mut count = 0usize;
    for (start, end) in batch_edges(bytes)? {
        if !wanted.is_some_and(|entry| is_valid(&bytes[start..end], ledger, entry)) {
            break;
        }
        count += 1;
        wanted = wanted.and_then(|entry| entry.checked_add(1));
    }
    Ok(count)
}
