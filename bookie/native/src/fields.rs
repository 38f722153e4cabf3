//! Reads the fields of one protobuf message, in order. None for bytes that a caller leaves to the general parser.

pub const VARINT: u8 = 0;
pub const BYTES: u8 = 2;

const VARINT_BYTES_MAX: usize = 10;
const POSITIVE_BYTES_MAX: usize = 9;
/// The general parser refuses longer tags and sizes.
const TAG_BYTES_MAX: usize = 5;

pub struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    pub fn of(bytes: &'a [u8]) -> Fields<'a> {
        Fields { bytes, at: 0 }
    }

    pub fn is_done(&self) -> bool {
        self.at >= self.bytes.len()
    }

    fn varint_of(&mut self, bytes_max: usize) -> Option<u64> {
        let mut found = 0u64;
        for index in 0..bytes_max {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            if index == 9 && byte > 1 {
                return None;
            }
            found |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                return Some(found);
            }
        }
        None
    }

    pub fn varint(&mut self) -> Option<u64> {
        self.varint_of(VARINT_BYTES_MAX)
    }

    /// A number of at most nine bytes, which is below 2^63.
    pub fn positive(&mut self) -> Option<u64> {
        self.varint_of(POSITIVE_BYTES_MAX)
    }

    /// The number of a field, and the type of its bytes.
    pub fn tag(&mut self) -> Option<(u64, u8)> {
        let word = self.varint_of(TAG_BYTES_MAX).filter(|word| *word <= u64::from(u32::MAX))?;
        Some((word >> 3, (word & 7) as u8))
    }

    /// Continue after a byte that must be here.
    pub fn expect(&mut self, byte: u8) -> Option<()> {
        (*self.bytes.get(self.at)? == byte).then(|| self.at += 1)
    }

    /// The bytes of a field, after their size.
    pub fn string(&mut self) -> Option<&'a [u8]> {
        let size = self.varint_of(TAG_BYTES_MAX).filter(|size| *size <= i32::MAX as u64)?;
        self.take(size as usize)
    }

    /// The same for a size of at most nine bytes.
    pub fn part(&mut self) -> Option<&'a [u8]> {
        let size = usize::try_from(self.positive()?).ok()?;
        self.take(size)
    }

    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(size).filter(|end| *end <= self.bytes.len())?;
        let found = &self.bytes[self.at..end];
        self.at = end;
        Some(found)
    }

    pub fn text(&mut self) -> Option<&'a [u8]> {
        let found = self.string()?;
        std::str::from_utf8(found).ok().map(str::as_bytes)
    }

    /// A number that fits a signed field of 32 bits.
    pub fn small(&mut self) -> Option<u32> {
        self.varint().filter(|number| *number <= i32::MAX as u64).map(|number| number as u32)
    }
}
