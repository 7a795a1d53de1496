//! Fits a plan into the memory of a device, or names the flags with which it would fit.

use crate::plan::{self, MemoryNeed, Parts, Plan, Request, plan};
use kjit_engine::Device;
use kjit_exec::{KvType, OpenOptions, SessionError};
use kjit_graph::{Graph, Op, is_host_ffn};
use kjit_kernels::kv::PAGE;

/// Available bytes of system memory; 0 if unknown.
pub(crate) fn system_memory() -> u64 {
    let said = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = said.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    line.and_then(|l| l.trim().split(' ').next()?.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

/// Free and total bytes for a model. For an integrated GPU, drivers often report only the memory
/// that the firmware reserved. The usable part of the rest is known only by allocation. The limit
/// is the available system memory.
pub fn free_memory(device: &Device) -> Result<(u64, u64), SessionError> {
    let (free, total) = device.memory()?;
    let system = if device.info().integrated { system_memory() } else { 0 };
    Ok((free.max(system), total))
}

/// Bytes that a model may use.
pub(crate) fn budget(device: &Device, options: &OpenOptions) -> Result<u64, SessionError> {
    let free = free_memory(device)?.0;
    Ok(options.memory.unwrap_or(free).min(free))
}

/// The budget with streamed layers. It is reduced by the rounding of allocations, because a plan
/// for this size must fit.
pub(crate) fn room_in(device: &Device, options: &OpenOptions) -> Result<u64, SessionError> {
    let free = free_memory(device)?.0;
    let room = free.saturating_sub((free / 256).max(1 << 20));
    Ok(options.memory.unwrap_or(room).min(room))
}

/// With [`OpenOptions::fewer`]: the options with the largest number of sequences that fit in
/// addition to all weights, and their plan.
pub(super) fn as_many_as_fit(
    device: &Device,
    request: &Request,
    asked: Plan,
) -> Result<(OpenOptions, Plan), SessionError> {
    let mut options = request.options.clone();
    if !options.fewer || options.stream {
        return Ok((options, asked));
    }
    let budget = budget(device, &options)?;
    let mut fewer = None;
    while fewer.as_ref().unwrap_or(&asked).memory.total() > budget
        && options.sequences > OpenOptions::FEW
    {
        options.sequences = (options.sequences / 2).max(OpenOptions::FEW);
        fewer = Some(plan(&Request { options: &options, ..*request })?);
    }
    Ok(match fewer {
        Some(fewer) if fewer.memory.total() <= budget => (options, fewer),
        // Layers are streamed in any case, and all sequences share the copies.
        _ => (request.options.clone(), asked),
    })
}

/// Checks before any allocation that the plan fits the budget, with streamed layers if needed. If
/// it does not fit, the error suggests options with which it fits.
pub(super) fn fit_memory(
    device: &Device,
    request: &Request,
    plan: &mut Plan,
) -> Result<(), SessionError> {
    let (free, total) = free_memory(device)?;
    let OpenOptions { memory, stream, .. } = *request.options;
    if plan.memory.total() <= memory.unwrap_or(free).min(free) && !stream {
        return Ok(());
    }
    // The number of host experts is explicit, and it determines which weights stay resident.
    if !plan.decode.pauses.is_empty() && !is_host_ffn(request.graph) {
        let (need, room) = (plan.memory.total(), memory.unwrap_or(free).min(free) >> 20);
        let hint = match stream {
            true => "--host-experts needs resident layers: remove --stream".to_owned(),
            false => format!(
                "{room} MiB are available; {} needs less",
                less_aside(request.graph, request.options)
            ),
        };
        return Err(SessionError::Memory {
            what: format!("all weights except the CPU's experts on {}", device.label()),
            bytes: need,
            hint,
        });
    }
    let room = free.saturating_sub((free / 256).max(1 << 20));
    let budget = room_in(device, request.options)?;
    let Err(need) = plan.fit(request.graph, budget, stream) else { return Ok(()) };
    let mib = |n: u64| n >> 20;
    let less = what_would_fit(request, plan, need, budget)?;
    let limited = memory.filter(|m| *m < room);
    let there = match limited {
        Some(memory) => format!("--memory allows {} MiB", mib(memory)),
        None => format!("{} MiB of {} MiB are free", mib(free), mib(total)),
    };
    let more = format!("--memory {}MiB is enough, with all layers streamed", mib(need) + 1);
    let hint = match (less, limited.filter(|_| need <= room)) {
        (None, Some(_)) => format!("{there}; {more}"),
        (None, None) => {
            format!("{there}; use a smaller model or a smaller quantisation")
        }
        (Some(less), Some(_)) => format!("{there}; {more}, and {less} also fits"),
        (Some(less), None) => format!("{there}; {less} fits"),
    };
    let sequences = plan.slots;
    let each = if let Some(tokens) = request.options.paged {
        format!(" and {tokens} tokens of all sequences")
    } else if sequences > 1 {
        format!(" for each of {sequences} sequences")
    } else {
        String::new()
    };
    let context = request.context();
    let what = format!("the model with a context of {context}{each} on {}", device.label());
    Err(SessionError::Memory { what, bytes: need, hint })
}

/// Flags with which a plan that needs at least `need` bytes fits the budget. `None` if even the
/// smallest context does not fit.
fn what_would_fit(
    request: &Request,
    plan: &Plan,
    need: u64,
    budget: u64,
) -> Result<Option<String>, SessionError> {
    let (options, context) = (request.options, request.context().max(2) as u64);
    let least = |options: &OpenOptions| -> Result<u64, SessionError> {
        let mut plan = plan::plan(&Request { options, ..*request })?;
        Ok(plan.fit(request.graph, 0, options.stream).err().unwrap_or(0))
    };
    // The flag for pages counts bytes of keys and values.
    let token = options.kv_stored().bytes(request.graph.kv_elems_per_token());
    let named = |tokens: u64| match tokens.saturating_mul(token) >> 20 {
        0 => (format!("--kv-memory {}B", tokens * token), tokens),
        mib => (format!("--kv-memory {mib}MiB"), (mib << 20) / token.max(1)),
    };
    let (mut need, pages) = (need, plan.pages.map(|pages| pages as u64));
    if let Some(pages) = pages.filter(|_| token > 0) {
        let in_pages = plan
            .caches
            .iter()
            .zip(&plan.parts)
            .filter(|(_, parts)| matches!(parts, Parts::Pages(_)));
        let each = in_pages.flat_map(|(bytes, _)| bytes).sum::<u64>().max(1);
        let fit = budget.saturating_sub(need.saturating_sub(each.saturating_mul(pages))) / each;
        let (flag, tokens) = named(fit.saturating_mul(PAGE as u64));
        if tokens >= context {
            return Ok(Some(flag));
        }
        // Not even one context fits, so the context must be smaller.
        need = least(&OpenOptions { paged: Some(context as usize), ..options.clone() })?;
    }
    // Bytes for each token: keys, values, a row of each rotation table. A plan with half the
    // context separates these bytes from fixed sizes.
    let half = (context / 2) as usize;
    let fewer =
        least(&OpenOptions { context: Some(half), paged: pages.map(|_| half), ..options.clone() })?;
    let per_token = (need.saturating_sub(fewer) / (context - context / 2)).max(1);
    let fits =
        budget.saturating_sub(need.saturating_sub(per_token.saturating_mul(context))) / per_token;
    Ok(match (fits, pages) {
        (0, _) => None,
        (n, None) => Some(format!("-c {n}")),
        // Whole pages, minus one for rounding.
        (n, Some(_)) => match (n / PAGE as u64).saturating_sub(1) * PAGE as u64 {
            0 => None,
            n => Some(format!("-c {n} with --kv-memory {}B", n * token)),
        },
    })
}

/// Flags that reduce the device memory of a model with host parts.
fn less_aside(graph: &Graph, options: &OpenOptions) -> String {
    let more = graph.ops.iter().any(|op| matches!(op, Op::ExpertMatMul(_)));
    let kept = if options.paged.is_some() { "a smaller --kv-memory" } else { "a smaller -c" };
    if options.hot_experts.is_some() {
        return format!("a larger --host-experts, a smaller --hot-experts, or {kept},");
    }
    if more { format!("a larger --host-experts, or {kept},") } else { kept.to_owned() }
}

/// Adds the flag that reduces memory to an allocation error.
pub(super) fn what_helps(
    error: SessionError,
    need: MemoryNeed,
    options: &OpenOptions,
) -> SessionError {
    let SessionError::Memory { what, bytes, hint } = error else { return error };
    let mib = |n: u64| n >> 20;
    let kept = if options.kv_stored() == KvType::Q8_0 { "" } else { " or --kv-type q8_0" };
    let help = match need.kv.saturating_add(need.rest) > need.total() / 8 {
        true if options.paged.is_some() => {
            format!("use a smaller --kv-memory{kept}")
        }
        true => format!("use a smaller -c{kept}"),
        false if options.hot_experts.is_some() => {
            "use a larger --host-experts or a smaller --hot-experts".to_owned()
        }
        false if options.host_experts > 0 => "use a larger --host-experts".to_owned(),
        false => format!("use --memory with less than {} MiB to stream layers", mib(need.total())),
    };
    let (all, weights, kv) = (mib(need.total()), mib(need.weights), mib(need.kv));
    let hint = format!(
        "{hint}; the whole plan needs {all} MiB ({weights} of weights, {kv} of keys and values): \
         {help}, or stop other programs that use the device"
    );
    SessionError::Memory { what, bytes, hint }
}
