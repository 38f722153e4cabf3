//! Encodes the entries of many ledgers for an entry log and the index; see `plain_flushes`.

use crate::buffers::{new_bytes, Buffer};
use crate::{put_record, CHUNK_BYTES, PLACE_KEPT, PLACE_SIZE_BITS, RECORD_HEAD_BYTES};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

const BLOCK_SHIFT: u32 = 8;
const BITMAP_BYTES: usize = 32;
const BITMAP: u8 = 1;
const SHORT: u8 = 2;
const LONG: u8 = 4;
const SEGMENT_BYTES: usize = 12;
const BLOCK_HEAD_BYTES: usize = 6;
const BLOCK_VERSION: u8 = 1;

struct Run {
    ledger: i64,
    ids: Buffer,
    places: Buffer,
    start: usize,
    stop: usize,
}

impl Run {
    /// Create a run. The tuple must live as long as the run, because it owns the arrays.
    fn of(item: &Bound<'_, PyTuple>) -> PyResult<Run> {
        let run = Run {
            ledger: item.get_item(0)?.extract()?,
            ids: Buffer::read(&item.get_item(1)?)?,
            places: Buffer::read(&item.get_item(2)?)?,
            start: item.get_item(3)?.extract()?,
            stop: item.get_item(4)?.extract()?,
        };
        let (ids, places) = (run.ids.bytes().len(), run.places.bytes().len());
        if ids != places || ids % 8 != 0 || run.start >= run.stop || run.stop > ids / 8 {
            return Err(PyValueError::new_err("not a run of one block"));
        }
        Ok(run)
    }

    fn id(&self, index: usize) -> i64 {
        i64::from_ne_bytes(self.ids.bytes()[index * 8..index * 8 + 8].try_into().unwrap())
    }

    fn place(&self, index: usize) -> i64 {
        i64::from_ne_bytes(self.places.bytes()[index * 8..index * 8 + 8].try_into().unwrap())
    }
}

/// Return record bytes and the segment of each run that fits; see `plain_flushes.run_segments`.
#[pyfunction]
pub fn run_segments<'py>(runs: &Bound<'py, PyList>, kept: &Bound<'py, PyList>, bytes_max: i64) -> PyResult<Bound<'py, PyList>> {
    let py = runs.py();
    let found = PyList::empty(py);
    let mut left = bytes_max;
    let mut sizes: Vec<u32> = Vec::new();
    for item in runs.iter() {
        let item = item.downcast_into::<PyTuple>()?;
        let run = Run::of(&item)?;
        if run.id(run.start) >> BLOCK_SHIFT != run.id(run.stop - 1) >> BLOCK_SHIFT || run.stop - run.start > 256 {
            return Err(PyValueError::new_err("not a run of one block"));
        }
        sizes.clear();
        let mut size_bytes = 0i64;
        for index in run.start..run.stop {
            let place = run.place(index);
            let size = if place & PLACE_KEPT != 0 {
                kept.get_item((place ^ PLACE_KEPT) as usize)?.len()? as i64
            } else {
                place & ((1 << PLACE_SIZE_BITS) - 1)
            };
            size_bytes += size + RECORD_HEAD_BYTES as i64;
            sizes.push(u32::try_from(size).map_err(|_| PyValueError::new_err("an entry too large"))?);
        }
        left -= size_bytes;
        if left < 0 {
            break;
        }
        found.append((size_bytes, PyBytes::new(py, &tail(&run, &sizes))))?;
    }
    Ok(found)
}

fn tail(run: &Run, sizes: &[u32]) -> Vec<u8> {
    let count = sizes.len();
    let first = run.id(run.start);
    let stride = if count > 1 { run.id(run.start + 1) - first } else { 1 };
    let regular = (run.start + 1..run.stop).all(|index| run.id(index) - run.id(index - 1) == stride);
    let longest = *sizes.iter().max().unwrap();
    let even = sizes.iter().all(|size| *size == longest);
    let mut form = if regular { 0 } else { BITMAP };
    if !even {
        form |= if longest < 1 << 16 { SHORT } else { LONG };
    }
    let mut out = Vec::with_capacity(4 + BITMAP_BYTES + 4 * count);
    out.extend_from_slice(&[form, first as u8, stride as u8, (count - 1) as u8]);
    if !regular {
        let mut bitmap = [0u8; BITMAP_BYTES];
        for index in run.start..run.stop {
            let low = run.id(index) as u8;
            bitmap[(low >> 3) as usize] |= 1 << (low & 7);
        }
        out.extend_from_slice(&bitmap);
    }
    if even {
        out.extend_from_slice(&longest.to_le_bytes());
    } else if longest < 1 << 16 {
        sizes.iter().for_each(|size| out.extend_from_slice(&(*size as u16).to_le_bytes()));
    } else {
        sizes.iter().for_each(|size| out.extend_from_slice(&size.to_le_bytes()));
    }
    out
}

/// Write the records of several runs into the target; see `plain_flushes.encode_runs`.
#[pyfunction]
pub fn encode_runs(
    target: &Bound<'_, PyAny>,
    at: usize,
    salt: u32,
    runs: &Bound<'_, PyList>,
    chunks: &Bound<'_, PyList>,
    kept: &Bound<'_, PyList>,
) -> PyResult<usize> {
    let mut target = Buffer::write(target)?;
    let out = target.bytes_mut();
    let mut chunk: Option<(usize, Buffer)> = None;
    let mut at = at;
    for item in runs.iter() {
        let item = item.downcast_into::<PyTuple>()?;
        let run = Run::of(&item)?;
        for index in run.start..run.stop {
            let (id, place) = (run.id(index), run.place(index));
            if place & PLACE_KEPT != 0 {
                let entry = kept.get_item((place ^ PLACE_KEPT) as usize)?;
                let source = Buffer::read(&entry)?;
                at = put_record(out, at, salt, run.ledger, id, source.bytes())?;
                continue;
            }
            let (start, size) = ((place >> PLACE_SIZE_BITS) as usize, (place & ((1 << PLACE_SIZE_BITS) - 1)) as usize);
            let (number, offset) = (start / CHUNK_BYTES, start % CHUNK_BYTES);
            if chunk.as_ref().map(|held| held.0) != Some(number) {
                chunk = Some((number, Buffer::read(&chunks.get_item(number)?)?));
            }
            let held = chunk.as_ref().unwrap().1.bytes();
            if offset + size > held.len() {
                return Err(PyIndexError::new_err("a place outside its chunk"));
            }
            at = put_record(out, at, salt, run.ledger, id, &held[offset..offset + size])?;
        }
    }
    Ok(at)
}

/// Return new values of index blocks that can be merged here; see `plain_flushes.merge_blocks`.
#[pyfunction]
pub fn merge_blocks<'py>(
    keys: &Bound<'py, PyList>,
    olds: &Bound<'py, PyList>,
    fresh: &Bound<'py, PyList>,
) -> PyResult<Bound<'py, PyList>> {
    let py = keys.py();
    if keys.len() != olds.len() || keys.len() != fresh.len() {
        return Err(PyValueError::new_err("not one value for each key"));
    }
    let found = PyList::empty(py);
    for index in 0..keys.len() {
        let (key, old, new) = (keys.get_item(index)?, olds.get_item(index)?, fresh.get_item(index)?);
        let (key, new) = (key.downcast::<PyBytes>()?.as_bytes(), new.downcast::<PyBytes>()?.as_bytes());
        let salt = crc32c::crc32c(key);
        let (mut body, mut flags): (&[u8], u8) = (&[], 0);
        if !old.is_none() {
            let value = old.downcast::<PyBytes>()?.as_bytes();
            if !may_be_joined(salt, value, new) {
                found.append(py.None())?;
                continue;
            }
            (body, flags) = (&value[BLOCK_HEAD_BYTES..], value[5] & 1);
        }
        found.append(new_bytes(py, BLOCK_HEAD_BYTES + body.len() + new.len(), |out| {
            out[4] = BLOCK_VERSION;
            out[5] = flags;
            out[BLOCK_HEAD_BYTES..BLOCK_HEAD_BYTES + body.len()].copy_from_slice(body);
            out[BLOCK_HEAD_BYTES + body.len()..].copy_from_slice(new);
            let crc = crc32c::crc32c_append(salt, &out[4..]);
            out[..4].copy_from_slice(&crc.to_le_bytes());
            Ok(())
        })?)?;
    }
    Ok(found)
}

fn may_be_joined(salt: u32, value: &[u8], new: &[u8]) -> bool {
    if value.len() < BLOCK_HEAD_BYTES || value[4] != BLOCK_VERSION {
        return false;
    }
    let stored = u32::from_le_bytes(value[..4].try_into().unwrap());
    if crc32c::crc32c_append(salt, &value[4..]) != stored {
        return false;
    }
    match (masks(&value[BLOCK_HEAD_BYTES..]), masks(new)) {
        (Some(held), Some(more)) => held.iter().zip(more.iter()).all(|(one, other)| one & other == 0),
        _ => false,
    }
}

/// Return the bit mask of the ids in some segments; None if the segments are invalid.
fn masks(segments: &[u8]) -> Option<[u8; BITMAP_BYTES]> {
    let mut taken = [0u8; BITMAP_BYTES];
    let mut at = 0usize;
    while at < segments.len() {
        let head = segments.get(at + 8..at + SEGMENT_BYTES)?;
        let (form, first, stride, last) = (head[0], head[1] as usize, head[2] as usize, head[3] as usize);
        at += SEGMENT_BYTES;
        if form & BITMAP != 0 {
            let bitmap = segments.get(at..at + BITMAP_BYTES)?;
            taken.iter_mut().zip(bitmap.iter()).for_each(|(one, other)| *one |= other);
            at += BITMAP_BYTES;
        } else {
            if stride == 0 || first + stride * last > 255 {
                return None;
            }
            for low in (first..=first + stride * last).step_by(stride) {
                taken[low >> 3] |= 1 << (low & 7);
            }
        }
        at += match form & (SHORT | LONG) {
            0 => 4,
            kind if kind & SHORT != 0 => 2 * (last + 1),
            _ => 4 * (last + 1),
        };
    }
    (at == segments.len()).then_some(taken)
}
