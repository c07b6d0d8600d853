//! The channels of an association by their numbers.

/// A sorted list: nearly every association has one channel or few, and new numbers are mostly the highest. Every packet is looked up here.
#[derive(Debug, Default)]
pub struct Numbers {
    /// Number and index, by number.
    entries: Vec<(u16, u32)>,
}

impl Numbers {
    fn place(&self, number: u16) -> Result<usize, usize> {
        match *self.entries.as_slice() {
            [(only, _)] if only == number => Ok(0),
            _ => self.entries.binary_search_by_key(&number, |&(number, _)| number),
        }
    }

    pub fn get(&self, number: u16) -> Option<u32> {
        let place = self.place(number).ok()?;
        Some(self.entries[place].1)
    }

    pub fn contains(&self, number: u16) -> bool {
        self.place(number).is_ok()
    }

    /// Adds a channel; one that had the number is replaced.
    pub fn insert(&mut self, number: u16, index: u32) {
        match self.place(number) {
            Ok(place) => self.entries[place].1 = index,
            Err(place) => self.entries.insert(place, (number, index)),
        }
    }

    pub fn remove(&mut self, number: u16) {
        if let Ok(place) = self.place(number) {
            self.entries.remove(place);
        }
    }

    /// The entry with the lowest number.
    pub fn pop_first(&mut self) -> Option<(u16, u32)> {
        (!self.entries.is_empty()).then(|| self.entries.remove(0))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Numbers and indices, by number.
    pub fn iter(&self) -> impl Iterator<Item = (u16, u32)> {
        self.entries.iter().copied()
    }

    /// Indices, by number.
    pub fn indices(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().map(|&(_, index)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0..40u16, any::<u32>(), 0..4u8), 0..300)) {
            let (mut numbers, mut map) = (Numbers::default(), BTreeMap::new());
            for (number, index, step) in steps {
                match step {
                    0 | 1 => {
                        numbers.insert(number, index);
                        map.insert(number, index);
                    }
                    2 => {
                        numbers.remove(number);
                        map.remove(&number);
                    }
                    _ => prop_assert_eq!(numbers.pop_first(), map.pop_first()),
                }
                prop_assert_eq!((numbers.get(number), numbers.len()), (map.get(&number).copied(), map.len()));
                prop_assert_eq!(numbers.contains(number), map.contains_key(&number));
                prop_assert!(numbers.iter().eq(map.iter().map(|(&number, &index)| (number, index))));
            }
        }
    }
}
