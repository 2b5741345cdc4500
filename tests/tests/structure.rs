//! Tests of the source code: its layers, its sizes and its prose. They run no server.

mod engine_layers;
mod layers;
mod rooms;
mod tidy;
