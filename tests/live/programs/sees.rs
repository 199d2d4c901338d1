//! Says what Rust's standard library sees, once for every line of its input: `available_parallelism()`.
fn main() {
    for _ in std::io::stdin().lines() {
        println!("{}", std::thread::available_parallelism().map_or(0, usize::from));
    }
}
