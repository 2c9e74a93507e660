//! Dense storage with small numbers for names: deterministic, and quick to walk.

/// Places in one chunk: a megabyte of the largest records, which is had in a fraction of a
/// millisecond.
const CHUNK: usize = 1 << CHUNK_BITS;
const CHUNK_BITS: u32 = 10;

/// A vector whose freed places are used again, the last freed first.
///
/// It grows by chunks and never moves what it holds: a vector of a million records would stand
/// still for a tenth of a second to grow, and take twice its memory meanwhile.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Vec<Option<T>>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), free: Vec::new() }
    }
}

/// The chunk of a number, and its place in there.
const fn split(ix: u32) -> (usize, usize) {
    ((ix >> CHUNK_BITS) as usize, ix as usize & (CHUNK - 1))
}

impl<T> Slab<T> {
    /// Puts a value in and says its number.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(ix) = self.free.pop() {
            let (chunk, place) = split(ix);
            self.chunks[chunk][place] = Some(value);
            return ix;
        }
        let ix = u32::try_from(self.places()).expect("fewer than 2^32 records fit in memory");
        if split(ix).1 == 0 {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let (chunk, _) = split(ix);
        self.chunks[chunk].push(Some(value));
        ix
    }

    /// Places in use and free.
    fn places(&self) -> usize {
        match self.chunks.as_slice() {
            [] => 0,
            [full @ .., last] => full.len() * CHUNK + last.len(),
        }
    }

    pub(crate) fn remove(&mut self, ix: u32) -> Option<T> {
        let (chunk, place) = split(ix);
        let value = self.chunks.get_mut(chunk)?.get_mut(place)?.take();
        if value.is_some() {
            self.free.push(ix);
        }
        value
    }

    pub(crate) fn get(&self, ix: u32) -> Option<&T> {
        let (chunk, place) = split(ix);
        self.chunks.get(chunk)?.get(place)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, ix: u32) -> Option<&mut T> {
        let (chunk, place) = split(ix);
        self.chunks.get_mut(chunk)?.get_mut(place)?.as_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.places() - self.free.len()
    }

    /// Every value with its number, in the order of the numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0_u32..)
            .zip(self.chunks.iter().flatten())
            .filter_map(|(ix, place)| place.as_ref().map(|value| (ix, value)))
    }

    /// Every number in use.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.iter().map(|(ix, _)| ix).collect()
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, ix: u32) -> &T {
        self.get(ix).expect("numbers are given out by this slab and dropped with their record")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, ix: u32) -> &mut T {
        self.get_mut(ix).expect("numbers are given out by this slab and dropped with their record")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_over_chunks_and_freed_ones_are_used_again() {
        let mut slab = Slab::default();
        let count = 2 * CHUNK as u32 + 3;
        for value in 0..count {
            assert_eq!(slab.insert(value), value);
        }
        assert_eq!((slab.len(), slab.get(count)), (count as usize, None));
        let edge = CHUNK as u32;
        for ix in [edge - 1, edge] {
            assert_eq!((slab.remove(ix), slab.remove(ix)), (Some(ix), None));
        }
        assert_eq!(slab.iter().count(), count as usize - 2);
        assert!(slab.iter().all(|(ix, value)| ix == *value && slab[ix] == ix));
        assert_eq!((slab.insert(7), slab.insert(8), slab.insert(9)), (edge, edge - 1, count));
        assert_eq!((slab[edge], slab[edge - 1], slab[count]), (7, 8, 9));
    }
}
