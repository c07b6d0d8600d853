//! What the kernel gives of a directory (`getdents64`).

/// The names of entries: each has two words, its length in two bytes, a byte, and the name up to a zero byte.
#[derive(Debug)]
pub struct Names<'a>(&'a [u8]);

impl Names<'_> {
    pub fn of(entries: &[u8]) -> Names<'_> {
        Names(entries)
    }
}

impl<'a> Iterator for Names<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        const LENGTH: usize = 16;
        const NAME: usize = 19;
        let length = u16::from_ne_bytes(self.0.get(LENGTH..LENGTH + 2)?.try_into().ok()?);
        let (entry, rest) = self.0.split_at_checked(usize::from(length))?;
        self.0 = rest;
        entry.get(NAME..)?.split(|&byte| byte == 0).next()
    }
}
