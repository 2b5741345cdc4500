//! Tests of the source code: its layers, sizes, prose and packages. They run no server.

mod ci;
mod engine_layers;
mod layers;
mod packages;
mod rooms;
mod tidy;
