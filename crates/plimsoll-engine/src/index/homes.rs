//! Which leaf holds a host, by its dense number.

use super::node::NOWHERE;

/// Hosts to a page. A partition with one host pays one page of 2 KiB, not a table of the fleet.
const PAGE: usize = 512;

/// A table from host numbers to leaves, in pages that exist once a host of theirs has been put.
#[derive(Clone, Default)]
pub(super) struct Homes {
    pages: Vec<Option<Box<[u32; PAGE]>>>,
}

impl Homes {
    pub(super) fn get(&self, host: u32) -> Option<u32> {
        let page = self.pages.get(host as usize / PAGE)?.as_ref()?;
        let leaf = page[host as usize % PAGE];
        (leaf != NOWHERE).then_some(leaf)
    }

    pub(super) fn set(&mut self, host: u32, leaf: u32) {
        let number = host as usize / PAGE;
        if number >= self.pages.len() {
            self.pages.resize(number + 1, None);
        }
        let page = self.pages[number].get_or_insert_with(|| Box::new([NOWHERE; PAGE]));
        page[host as usize % PAGE] = leaf;
    }

    pub(super) fn clear(&mut self, host: u32) {
        if let Some(Some(page)) = self.pages.get_mut(host as usize / PAGE) {
            page[host as usize % PAGE] = NOWHERE;
        }
    }
}
