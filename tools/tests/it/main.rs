//! Tests of the command: one program, a module for each subject. `scripts/test` (nextest) gives
//! each test a process of its own.

mod bundle_front;
mod cache_command;
mod cache_hostile;
mod chat;
mod compile_service;
mod contract;
mod docs;
mod embed;
mod first_run;
mod first_token;
mod folder;
mod habits;
mod hub;
mod interrupted;
mod kernel_matrix;
mod ps;
mod readme;
mod serve;
mod serve_clients;
mod serve_faults;
mod serve_fuzzed;
mod serve_lives;
mod serve_lookup;
mod serve_models;
mod serve_schemas;
mod serve_tls;
mod simulated;
mod simulated_cache;
mod simulated_ranks;
mod simulated_tuning;
mod simulated_warm;
mod support;
mod wrong_input;
