//! Draws the picture of `LOLWUT`: dragonflies over a pond.

use pantala_base::Random;

use crate::connection::REDIS_VERSION;

const COLUMNS: usize = 64;
const ROWS: usize = 12;

/// Rows of water at the bottom.
const POND_ROWS: usize = 2;

/// Number of dragonflies to try. A dragonfly that would overlap another is skipped.
const DRAGONFLIES_MAX: usize = 9;

/// Dragonflies that fly up, right, left, and towards the viewer. A space is transparent.
const SHAPES: [&[&str]; 4] = [
    &["`-.@.-'", ",-'|`-.", "   |", "   '"],
    &["   \\ \\ ", "~=====>O", "   / / "],
    &["  / / ", "O<=====~", "  \\ \\ "],
    &["__\\o/__", "  /|\\", "   :"],
];

/// Draws the picture of a seed. The last line is Redis's version.
pub(crate) fn draw(seed: u64) -> String {
    let mut random = Random::from_seed(seed);
    let mut canvas = [[b' '; COLUMNS]; ROWS];
    for _ in 0..DRAGONFLIES_MAX {
        let shape = SHAPES[random.below(SHAPES.len() as u64) as usize];
        let width = shape.iter().map(|line| line.len()).max().unwrap_or(0);
        let top = random.below((ROWS - POND_ROWS - shape.len() + 1) as u64) as usize;
        let left = random.below((COLUMNS - width + 1) as u64) as usize;
        place(&mut canvas, shape, top, left, width);
    }
    for row in &mut canvas[ROWS - POND_ROWS..] {
        for cell in row.iter_mut() {
            *cell = b"~~~~-~~ ~~-~"[random.below(12) as usize];
        }
    }
    let mut picture = String::with_capacity((COLUMNS + 1) * ROWS + 64);
    for row in &canvas {
        let line: String = row.iter().map(|&cell| char::from(cell)).collect();
        picture.push_str(line.trim_end());
        picture.push('\n');
    }
    picture.push_str("\nPantala flavescens, out for a glide.\n\nRedis ver. ");
    picture.push_str(REDIS_VERSION);
    picture.push('\n');
    picture
}

/// Draws a shape unless it would overlap another.
fn place(canvas: &mut [[u8; COLUMNS]; ROWS], shape: &[&str], top: usize, left: usize, width: usize) {
    let is_free = (top..top + shape.len()).all(|row| canvas[row][left..left + width].iter().all(|&cell| cell == b' '));
    if !is_free {
        return;
    }
    for (row, line) in shape.iter().enumerate() {
        canvas[top + row][left..left + line.len()].copy_from_slice(line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_picture_ends_with_the_version() {
        let pictures: Vec<String> = (0..50).map(draw).collect();
        for (seed, picture) in pictures.iter().enumerate() {
            assert!(picture.ends_with("\nRedis ver. 7.0.15\n"), "seed {seed}");
            assert!(picture.lines().all(|line| line.len() <= COLUMNS && line.is_ascii()), "seed {seed}:\n{picture}");
            assert!(SHAPES.iter().any(|shape| picture.contains(shape[0].trim_end())), "seed {seed}:\n{picture}");
        }
        assert_ne!(pictures[0], pictures[1]);
        assert_eq!(pictures[7], draw(7));
    }
}
