//! Dense storage with small numbers for names: deterministic, and quick to walk.

/// A vector whose freed places are used again, the last freed first.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Puts a value in and says its number.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(ix) = self.free.pop() {
            self.places[ix as usize] = Some(value);
            ix
        } else {
            let ix =
                u32::try_from(self.places.len()).expect("fewer than 2^32 records fit in memory");
            self.places.push(Some(value));
            ix
        }
    }

    pub(crate) fn remove(&mut self, ix: u32) -> Option<T> {
        let value = self.places.get_mut(ix as usize)?.take();
        if value.is_some() {
            self.free.push(ix);
        }
        value
    }

    pub(crate) fn get(&self, ix: u32) -> Option<&T> {
        self.places.get(ix as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, ix: u32) -> Option<&mut T> {
        self.places.get_mut(ix as usize)?.as_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Every value with its number, in the order of the numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0_u32..)
            .zip(&self.places)
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
        self.places[ix as usize]
            .as_ref()
            .expect("numbers are given out by this slab and dropped with their record")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, ix: u32) -> &mut T {
        self.places[ix as usize]
            .as_mut()
            .expect("numbers are given out by this slab and dropped with their record")
    }
}
