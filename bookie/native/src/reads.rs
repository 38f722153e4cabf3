//! Reads: decodes requests from a buffer and encodes stored records as responses. Specified in `plain_reads`.

use crate::buffers::{new_bytes, Buffer};
use crate::{be_i64, put_reply, LENGTH_BYTES, RECORD_HEAD_BYTES, REPLY_BYTES};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

const READ_FRAME_BYTES: usize = 24;
const READ_PREFIX_BYTES: usize = 16;

/// The int64s of a buffer in native byte order.
struct Numbers(Buffer);

impl Numbers {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Numbers> {
        let buffer = Buffer::read(object)?;
        if buffer.bytes().len() % 8 != 0 {
            return Err(PyValueError::new_err("not an array of int64"));
        }
        Ok(Numbers(buffer))
    }

    fn len(&self) -> usize {
        self.0.bytes().len() / 8
    }

    fn at(&self, index: usize) -> i64 {
        i64::from_ne_bytes(self.0.bytes()[index * 8..index * 8 + 8].try_into().unwrap())
    }
}

/// Records of one ledger in contiguous bytes.
struct Stretch {
    data: Buffer,
    ids: Numbers,
    starts: Numbers,
    sizes: Numbers,
}

impl Stretch {
    fn of(
        data: &Bound<'_, PyAny>,
        ids: &Bound<'_, PyAny>,
        starts: &Bound<'_, PyAny>,
        sizes: &Bound<'_, PyAny>,
    ) -> PyResult<Stretch> {
        let found = Stretch {
            data: Buffer::read(data)?,
            ids: Numbers::of(ids)?,
            starts: Numbers::of(starts)?,
            sizes: Numbers::of(sizes)?,
        };
        if found.ids.len() != found.starts.len() || found.ids.len() != found.sizes.len() {
            return Err(PyValueError::new_err("not one start and one size for each id"));
        }
        Ok(found)
    }

    /// Return the index of an entry; tries `guess` first.
    fn find(&self, entry: i64, guess: usize) -> Option<usize> {
        let count = self.ids.len();
        if guess < count && self.ids.at(guess) == entry {
            return Some(guess);
        }
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = (low + high) / 2;
            if self.ids.at(middle) < entry {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low < count && self.ids.at(low) == entry).then_some(low)
    }

    fn size(&self, index: usize) -> PyResult<usize> {
        usize::try_from(self.sizes.at(index)).map_err(|_| PyIndexError::new_err("a negative size"))
    }

    fn body(&self, index: usize) -> PyResult<&[u8]> {
        let size = self.size(index)?;
        let start = usize::try_from(self.starts.at(index)).map_err(|_| PyIndexError::new_err("a negative start"))?;
        let end = start.checked_add(size).filter(|end| *end <= self.data.bytes().len());
        match end {
            Some(end) => Ok(&self.data.bytes()[start..end]),
            None => Err(PyIndexError::new_err("a record outside its stretch")),
        }
    }
}

/// Return the ids of consecutive plain reads; see `plain_reads.take_reads`.
#[pyfunction]
pub fn take_reads(py: Python<'_>, data: &Bound<'_, PyAny>, position: usize) -> PyResult<(usize, Py<PyAny>)> {
    let buffer = Buffer::read(data)?;
    let bytes = buffer.bytes();
    let rest = bytes.get(position..).unwrap_or(&[]);
    let count = rest
        .chunks_exact(READ_FRAME_BYTES)
        .take_while(|frame| frame[..READ_PREFIX_BYTES] == rest[..READ_PREFIX_BYTES])
        .count();
    let ids = new_bytes(py, count * 8, |out| {
        for (frame, id) in rest.chunks_exact(READ_FRAME_BYTES).zip(out.chunks_exact_mut(8)) {
            id.copy_from_slice(&be_i64(frame, READ_PREFIX_BYTES).to_ne_bytes());
        }
        Ok(())
    })?;
    Ok((position + count * READ_FRAME_BYTES, ids))
}

/// Return the damaged records of a stretch; see `plain_reads.check_records`.
#[pyfunction]
pub fn check_records(
    data: &Bound<'_, PyAny>,
    salt: u32,
    ledger: i64,
    ids: &Bound<'_, PyAny>,
    starts: &Bound<'_, PyAny>,
    sizes: &Bound<'_, PyAny>,
) -> PyResult<Vec<usize>> {
    let stretch = Stretch::of(data, ids, starts, sizes)?;
    let bytes = stretch.data.bytes();
    let mut damaged = Vec::new();
    for index in 0..stretch.ids.len() {
        let body = stretch.body(index)?;
        let start = stretch.starts.at(index) as usize;
        if start < RECORD_HEAD_BYTES {
            return Err(PyIndexError::new_err("a record without its head"));
        }
        let record = &bytes[start - RECORD_HEAD_BYTES..start + body.len()];
        let intact = record[..4] == crc32c::crc32c_append(salt, &record[4..]).to_le_bytes()
            && record[4..8] == (body.len() as u32).to_le_bytes()
            && record[8..16] == ledger.to_le_bytes()
            && record[16..24] == stretch.ids.at(index).to_le_bytes();
        if !intact {
            damaged.push(index);
        }
    }
    Ok(damaged)
}

/// Encode V2 responses to reads of entries in a stretch; see `plain_reads.read_replies`.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn read_replies(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    ids: &Bound<'_, PyAny>,
    starts: &Bound<'_, PyAny>,
    sizes: &Bound<'_, PyAny>,
    header: u32,
    ledger: i64,
    wanted: &Bound<'_, PyAny>,
    at: usize,
    count_max: usize,
    bytes_max: usize,
) -> PyResult<(Py<PyAny>, usize)> {
    let stretch = Stretch::of(data, ids, starts, sizes)?;
    let wanted = Numbers::of(wanted)?;
    let mut found = Vec::with_capacity(count_max.min(wanted.len().saturating_sub(at)));
    let (mut size, mut guess) = (0usize, 0usize);
    while found.len() < count_max && at + found.len() < wanted.len() && (size < bytes_max || found.is_empty()) {
        let Some(index) = stretch.find(wanted.at(at + found.len()), guess) else { break };
        size += REPLY_BYTES + stretch.size(index)?;
        found.push(index);
        guess = index + 1;
    }
    let answers = new_bytes(py, size, |out| {
        let mut end = 0;
        for index in &found {
            let body = stretch.body(*index)?;
            let answer = &mut out[end..end + REPLY_BYTES + body.len()];
            end += answer.len();
            let length = (REPLY_BYTES - LENGTH_BYTES + body.len()) as u32;
            put_reply(answer, length, header, 0, ledger, stretch.ids.at(*index));
            answer[REPLY_BYTES..].copy_from_slice(body);
        }
        Ok(())
    })?;
    Ok((answers, found.len()))
}

/// Return entries of consecutive ids for the response to a batch read; see `plain_reads.batch_bodies`.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn batch_bodies(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    ids: &Bound<'_, PyAny>,
    starts: &Bound<'_, PyAny>,
    sizes: &Bound<'_, PyAny>,
    first: i64,
    entries_max: usize,
    bytes_max: usize,
) -> PyResult<(Py<PyAny>, usize)> {
    let stretch = Stretch::of(data, ids, starts, sizes)?;
    let guess = usize::try_from(first.wrapping_sub(if stretch.ids.len() > 0 { stretch.ids.at(0) } else { 0 }));
    let begin = stretch.find(first, guess.unwrap_or(0));
    let (mut count, mut size) = (0usize, 0usize);
    if let Some(begin) = begin {
        while count < entries_max && begin + count < stretch.ids.len() {
            let index = begin + count;
            let more = LENGTH_BYTES + stretch.size(index)?;
            if stretch.ids.at(index) - first != count as i64 || size + more > bytes_max {
                break;
            }
            size += more;
            count += 1;
        }
    }
    let bodies = new_bytes(py, size, |out| {
        let mut end = 0;
        for index in (0..count).map(|more| begin.unwrap_or(0) + more) {
            let body = stretch.body(index)?;
            let part = &mut out[end..end + LENGTH_BYTES + body.len()];
            end += part.len();
            part[..LENGTH_BYTES].copy_from_slice(&(body.len() as u32).to_be_bytes());
            part[LENGTH_BYTES..].copy_from_slice(body);
        }
        Ok(())
    })?;
    Ok((bodies, count))
}
