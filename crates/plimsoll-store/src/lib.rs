//! Durable storage of a cell's rows: memory and SQLite behind one trait.
