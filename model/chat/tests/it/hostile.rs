//! Tests hostile templates. Each case ends with a typed error of one line. It runs on a thread with
//! a small stack, within limits of memory and time.

use std::time::{Duration, Instant};

use crate::it::support::peak::peak_of;
use kjit_chat::{ChatError, ChatTemplate, MAX_MEMORY, Message};

/// Maximum memory that rendering may allocate: the counted memory, plus two times that amount while
/// a text or a list grows.
const MAX_ALLOCATED: usize = 3 * MAX_MEMORY;

/// A quarter of a thread's default stack.
const STACK: usize = 512 << 10;

/// Renders a template on a thread with a small stack. Checks memory, time and the format of the
/// error.
fn render(source: &str) -> Result<String, ChatError> {
    let source = source.to_owned();
    let run = move || {
        let start = Instant::now();
        let (result, peak) = peak_of(|| {
            let template = ChatTemplate::new("t", &source, None, None)?;
            template.render([Message::new("user", "some text")], true)
        });
        (result, peak, start.elapsed())
    };
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(run).unwrap();
    let (result, peak, took) = thread.join().unwrap();
    assert!(peak < MAX_ALLOCATED, "{} MiB at once", peak >> 20);
    assert!(took < Duration::from_secs(60), "{took:?}");
    if let Err(error) = &result {
        let line = error.to_string();
        assert!(line.chars().count() < 700 && !line.chars().any(char::is_control), "{line:?}");
        assert!(line.starts_with("t, line ") || line.starts_with("t: "), "{line:?}");
    }
    result
}

/// Asserts that a template is refused because it exceeds a limit.
fn too_much(source: &str) {
    let what: String = source.chars().take(80).collect();
    match render(source) {
        Err(ChatError::Limit { line, problem, .. }) => {
            assert!(line > 0 && !problem.is_empty(), "{what}")
        }
        other => panic!("{what}: {:.200}", format!("{other:?}")),
    }
}

#[test]
fn deep_nesting_is_refused_before_stack_overflow() {
    for n in [100, 5_000, 50_000] {
        for (open, inner, close) in [
            ("(", "1", ")"),
            ("[", "1", "]"),
            ("{1:", "1", "}"),
            ("x[", "1", "]"),
            ("range(", "1", ")"),
            ("1|default(", "1", ")"),
            ("1 is eq(", "1", ")"),
            ("1 if 1 else ", "1", ""),
            ("x(*", "1", ")"),
        ] {
            too_much(&format!("{{{{ {}{inner}{} }}}}", open.repeat(n), close.repeat(n)));
        }
        for (open, close) in [
            ("{% if 1 %}", "{% endif %}"),
            ("{% for a in [1] %}", "{% endfor %}"),
            ("{% if 0 %}{% else %}", "{% endif %}"),
            ("{% macro a() %}", "{% endmacro %}"),
            ("{% filter upper %}", "{% endfilter %}"),
            ("{% set a %}", "{% endset %}"),
            ("{% with a = 1 %}", "{% endwith %}"),
            ("{% call a() %}", "{% endcall %}"),
            ("{% block a %}", "{% endblock %}"),
            ("{% generation %}", "{% endgeneration %}"),
        ] {
            too_much(&format!("{}{}", open.repeat(n), close.repeat(n)));
        }
        too_much(&format!("{{% set {}a{} = 1 %}}", "(".repeat(n), ")".repeat(n)));
    }
}

#[test]
fn long_chains_do_not_use_stack() {
    let n = 50_000;
    let chain = |first: &str, link: &str| format!("{{{{ {first}{} }}}}", link.repeat(n));
    assert_eq!(render(&format!("{{{{ {}1 }}}}", "not ".repeat(n))).unwrap(), "True");
    assert_eq!(render(&format!("{{{{ {}1 }}}}", "- ".repeat(n))).unwrap(), "1");
    assert_eq!(
        render(&format!("{{{{ {}1 }}}}", "-+".repeat(n + 1))).unwrap(),
        "-1".replace("-", if n % 2 == 0 { "-" } else { "" })
    );
    assert_eq!(render(&chain("1", "+1")).unwrap(), (n + 1).to_string());
    assert_eq!(render(&chain("1", "|string")).unwrap(), "1");
    assert_eq!(render(&chain("1", " or 0")).unwrap(), "1");
    assert_eq!(render(&chain("1", " and 1")).unwrap(), "1");
    assert_eq!(render(&chain("1", " < 2 > 1")).unwrap(), "True");
    assert_eq!(render(&chain("1", " is number")).unwrap(), "True");
    assert_eq!(
        render(&chain("[]", " + [1]"))
            .map_err(|e| e.to_string())
            .unwrap_err()
            .matches("exceeds a limit")
            .count(),
        1
    );
    assert_eq!(render(&chain("1", " if 1")).unwrap(), "1");
    assert_eq!(
        render(&format!("{{% if 0 %}}{}{{% else %}}x{{% endif %}}", "{% elif 0 %}".repeat(n)))
            .unwrap(),
        "x"
    );
    assert!(matches!(render(&chain("x", ".a")), Err(ChatError::Render { .. })));
    assert!(matches!(render(&chain("x", "[0]")), Err(ChatError::Render { .. })));
    assert!(matches!(render(&chain("x", "()")), Err(ChatError::Render { .. })));
    // Each step copies the whole text: too many steps, but no deep stack.
    too_much(&chain("1", "~1"));
}

#[test]
fn endless_recursion_is_stopped() {
    too_much("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
    too_much("{% macro m(x) %}{{ [[m(x)]] }}{% endmacro %}{{ m(1) }}");
    too_much(
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
    );
    too_much(
        "{% macro m() %}{% if 1 %}{% for x in [1] %}{% set y %}{{ m() }}{% endset %}{% endfor %}{% endif %}{% endmacro %}{{ m() }}",
    );
    too_much(
        "{% macro m() %}{% if caller %}{% endif %}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}",
    );
    too_much(
        "{% macro m() %}{% call m() %}{{ m() }}{% endcall %}{{ caller() }}{% endmacro %}{% call m() %}x{% endcall %}",
    );
    too_much("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}");
    let deep = format!(
        "{{% macro m() %}}{{{{ {}m(){} }}}}{{% endmacro %}}{{{{ m() }}}}",
        "[".repeat(50),
        "]".repeat(50)
    );
    too_much(&deep);
    let map = format!("{{{{ [[1]]|map({})|list }}}}", vec!["'map'"; 5_000].join(","));
    assert!(matches!(render(&map), Err(ChatError::Limit { .. } | ChatError::Render { .. })));
}

#[test]
fn value_nesting_is_limited() {
    for grow in [
        "[ns.x]",
        "(ns.x,)",
        "{'a': ns.x}",
        "[ns.x] + []",
        "[ns.x] * 2",
        "[ns.x]|list",
        "dict(a=ns.x)",
        "[[1, ns.x]]|map('last')|list",
    ] {
        let source = format!(
            "{{% set ns = namespace(x=[]) %}}{{% for i in range(50000) %}}{{% set ns.x = {grow} \
             %}}{{% endfor %}}"
        );
        too_much(&format!("{source}{{{{ ns.x|tojson }}}}"));
        too_much(&format!("{source}{{{{ ns.x == ns.x }}}}"));
    }
    // The tuple is also used as a key.
    let tuples = "{% set ns = namespace(x=(1,)) %}{% for i in range(100) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}";
    too_much(&format!("{tuples}{{{{ {{ns.x: 1}} }}}}"));
    too_much(&format!("{tuples}{{{{ [ns.x]|unique|list }}}}"));
    too_much(&format!("{tuples}{{{{ ns.x|pprint }}}}"));
    // A list that contains the previous one twice, 100 times: 2^100 elements in 100 lists.
    let doubled = "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    for used in [
        "{{ ns.x }}",
        "{{ ns.x|tojson }}",
        "{{ ns.x == [ns.x[0], ns.x[1]] }}",
        "{{ ns.x|string|length }}",
        "{{ [ns.x, ns.x]|sort }}",
    ] {
        let source = format!("{doubled}{}", used);
        match render(&source) {
            Err(ChatError::Limit { .. }) => {}
            other => panic!("{used}: {:.100}", format!("{other:?}")),
        }
    }
    assert_eq!(render(&format!("{doubled}{{{{ ns.x|length }}}}")).unwrap(), "2");
    for cycle in ["ns.x = ns", "ns.x = [ns]", "ns.x = {'a': ns}", "ns.x = loop", "ns.x = ns.items"]
    {
        let source = format!(
            "{{% set ns = namespace() %}}{{% for i in [1] %}}{{% set {cycle} %}}{{% endfor %}}"
        );
        let result = render(&source);
        assert!(
            matches!(result, Err(ChatError::Render { .. })) || cycle.ends_with("items"),
            "{cycle}: {result:?}"
        );
    }
    assert!(render("{% set n = namespace() %}{% set m = namespace(a=n) %}").is_err());
    assert!(render("{% for i in [1, 2] %}{{ loop.changed(loop) }}{% endfor %}").is_err());
    let nested = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
    too_much(&format!("{{{{ {nested}|tojson }}}}"));
    let template = ChatTemplate::new("t", "{{ messages|tojson }}", None, None).unwrap();
    assert!(matches!(template.render_json(&nested, None, true), Err(ChatError::Messages(_))));
    let object = format!("[{{\"a\": {nested}}}]");
    assert!(matches!(template.render_json(&object, None, true), Err(ChatError::Messages(_))));
}

#[test]
fn template_memory_is_limited() {
    let growing = |start: &str, grow: &str| {
        format!(
            "{{% set ns = namespace(x={start}, y='') %}}{{% for i in range(60) %}}{{% set ns.x = {grow} %}}{{% endfor %}}{{{{ ns.x|length }}}}"
        )
    };
    for grow in [
        "ns.x ~ ns.x",
        "ns.x + ns.x",
        "ns.x * 2",
        "2 * ns.x",
        "[ns.x, ns.x]|join",
        "ns.x|replace('a', 'aa')",
        "ns.x.replace('a', 'aa')",
        "ns.x.replace('', 'aa')",
        "'%s%s'|format(ns.x, ns.x)",
        "'%s%s' % (ns.x, ns.x)",
        "'{}{}'.format(ns.x, ns.x)",
        "ns.x.join([ns.x, ns.x, ns.x])",
        "[ns.x, ns.x]|tojson",
        "[ns.x, ns.x]|string",
        "(ns.x, ns.x)|sum(start='')|upper",
        "(ns.x ~ '\nb')|indent(ns.x)",
        "(ns.x ~ '&')|escape ~ ns.x",
        "(ns.x ~ ns.x)|trim|lower|title|capitalize",
    ] {
        too_much(&growing("'a'", grow));
    }
    for grow in [
        "ns.x + ns.x",
        "ns.x * 3",
        "(ns.x + ns.x)|list",
        "ns.x[:] + ns.x",
        "(ns.x + ns.x)|reverse|list",
        "(ns.x * 2)|sort",
        "ns.x|batch(1, 0)|list * 2",
    ] {
        too_much(&growing("[1]", grow));
    }
    too_much("{{ 'a' * 1000000000000 }}");
    too_much("{{ [1] * 1000000000000 }}");
    too_much("{{ range(1000000000000) }}");
    too_much("{{ range(0, -1000000000000, -1) }}");
    too_much("{{ '%1000000000000d'|format(1) }}");
    too_much("{{ '%.1000000000000f'|format(1) }}");
    too_much("{{ '%99999999999999999999999999s' % 1 }}");
    too_much("{{ 'a'|center(1000000000000) }}");
    too_much("{{ ('a' * 50000000)|list }}");
    too_much("{{ ('a ' * 50000000).split() }}");
    too_much("{% set x = 'a' * 30000000 %}{% for i in x %}{% endfor %}");
    too_much("{% set x = 'a' * 40000000 %}{% set y = x[::-1] %}");
    assert!(render("{{ [1]|batch(1000000000000, 0)|list }}").is_err());
    assert!(render("{{ [1]|slice(1000000000000, 0)|list }}").is_err());
    assert!(render("{{ 2 ** 1000000000000 }}").is_err());
    assert_eq!(
        render("{{ 'x'|tojson(indent=1000000) }}").unwrap_or_else(|_| "refused".into()),
        "refused"
    );
    assert_eq!(
        render("{{ 1|round(1000000000000) }} {{ 1.0|round(1000000000000) }}").unwrap(),
        "1 1.0"
    );
    for method in ["center", "ljust", "rjust", "zfill"] {
        too_much(&format!("{{{{ 'a'.{method}(10 ** 12) }}}}"));
    }
    for format in [":1000000000000", ":01000000000000,", ":.1000000000000f", ":{w}"] {
        too_much(&format!("{{{{ '{{{format}}}'.format(1.5, w=10 ** 12) }}}}"));
    }
    too_much("{{ '%*d' % (10 ** 12, 1) }}");
    too_much("{{ ('a\\tb' * 1000).expandtabs(10 ** 9) }}");
    too_much("{{ 'a'|indent(10 ** 12, true) }}");
    too_much("{{ ('\\n' * 30000000).splitlines() }}");
    too_much("{{ ('a ' * 30000000)|wordwrap(1) }}");
    too_much("{{ ('a' * 1000000).translate({97: 'b' * 1000}) }}");
    too_much("{{ ''.maketrans('a' * 30000000, 'b' * 30000000) }}");
    too_much("{{ {}.fromkeys(range(100000)|list * 100) }}");
    too_much("{{ ('<' * 30000000)|e }}");
    too_much("{{ ('&' * 30000000)|urlencode }}");
    too_much("{{ [1]|slice(10 ** 9)|list }}");
    too_much(
        "{{ [1]|tojson(indent='a' \
         * 1000000)|length }}{{ [[[[[1] * 50]]]]|tojson(indent='a' * 1000000) }}",
    );
    too_much("{{ range(100000)[::1]|list * 100 }}");
    // Memory that was freed is not counted.
    let reused = "{% for i in range(200) %}{% set x = 'a' * 1000000 %}{% endfor %}done";
    assert_eq!(render(reused).unwrap(), "done");
    // Captured text counts like output.
    too_much(
        "{% macro m(n) %}{% for i in range(100000) %}{{ 'a' * 10000 }}{% endfor %}{% endmacro %}{{ m()|length }}",
    );
    too_much(
        "{% set x %}{% for i in range(100000) %}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{% for j in range(9) %}{{ 'a' * 1000 }}{% endfor %}{% endfor %}{% endset %}",
    );
    // Many simultaneous loops over a long list share one copy of it.
    let loops = "{% set x = [1] * 1000000 %}{% macro m(n) %}{% for i in x %}{{ m(n) }}{% endfor %}{% endmacro %}{{ m(1) }}";
    too_much(loops);
}

#[test]
fn template_time_is_limited() {
    too_much(
        "{% for a in range(100000) %}{% for b in range(100000) %}{% set c = a * b %}{% endfor %}{% endfor %}",
    );
    too_much(
        "{% set x = 'ab' * 10000000 %}{% for a in range(100000) %}{{ 'abc' in x }}{% endfor %}",
    );
    too_much(
        "{% set x = range(100000)|list %}{% for a in range(100000) %}{{ -1 in x }}{% endfor %}",
    );
    assert_eq!(
        render("{% set x = range(100000)|list %}{{ x|map('string')|unique|list|length }}").unwrap(),
        "100000"
    );
    // Filters that could take quadratic time take linear time.
    for odd in [
        "('&' * n)|striptags",
        "('<' * n)|striptags",
        "('<!--' * n)|striptags",
        "('-' * n)|wordwrap",
        "('(' * n)|urlize",
        "('a.' * n ~ '@')|urlize",
        "('{}' * 1000).format(*range(1000))|length",
        "('a-' * n)|wordwrap(3)|length",
    ] {
        render(&format!("{{% set n = 200000 %}}{{{{ {odd} }}}}")).unwrap();
    }
    too_much(
        "{% set x = 'a' * 1000000 %}{% for a in range(100000) %}{% set y = x|upper|lower|trim %}{% endfor %}",
    );
    too_much(
        "{% set x = 'a' * 1000000 %}{% for a in range(100000) %}{% set y = x.strip(x) %}{% endfor %}",
    );
    too_much(
        "{% set x = 'a' * 1000000 %}{% for a in range(100000) %}{% set y = x[1] ~ x.count('b') ~ x.find('b') %}{% endfor %}",
    );
    too_much(
        "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    );
}

#[test]
fn odd_sorts_and_numbers_do_not_panic() {
    assert!(render("{{ [3, 1.5, true, 2]|sort }}").unwrap().starts_with("[True"));
    let nan = "{% set nan = 1e308 * 10 - 1e308 * 10 %}";
    assert!(render(&format!("{nan}{{{{ [nan, 1, nan, 0, 2, nan, -1]|sort|length }}}}")).is_ok());
    assert!(render("{{ [1, 'a', none]|sort }}").is_err());
    for odd in [
        "{{ 1 // 0 }}",
        "{{ 1 % 0 }}",
        "{{ 1 / 0 }}",
        "{{ 1.0 % 0 }}",
        "{{ 170141183460469231731687303715884105727 + 1 }}",
        "{{ (-170141183460469231731687303715884105727 - 1) // -1 }}",
        "{{ -(-170141183460469231731687303715884105727 - 1) }}",
        "{{ 9999999999999999999999999999999999999999999999 }}",
        "{{ range(1, 2, 0) }}",
        "{{ [1][::0] }}",
    ] {
        assert!(render(odd).is_err(), "{odd}");
    }
    assert_eq!(
        render(
            "{{ 'abc'[-170141183460469231731687303715884105727:5] ~ [1, 2][9223372036854775807:] }}"
        )
        .unwrap(),
        "abc[]"
    );
    assert_eq!(render("{{ 'é😀x'[1] ~ 'é😀x'[::-1] ~ 'é😀x'|length }}").unwrap(), "😀x😀é3");
    assert_eq!(
        render("{{ -7 // 2 }} {{ -7 % 2 }} {{ 7.5 // 2 }} {{ 1e16 }} {{ 0.00001 }} {{ 1e15 }}")
            .unwrap(),
        "-4 1 3.0 1e+16 1e-05 1000000000000000.0"
    );
}

#[test]
fn template_cannot_read_files_or_attributes() {
    for source in [
        "{% include 'x' %}",
        "{% import 'x' as y %}",
        "{% from 'x' import y %}",
        "{% extends 'x' %}",
        "{{ messages.__class__ }}{{ messages.__class__.x }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ self.x }}",
        "{{ open('/etc/passwd') }}",
        "{{ messages.append(1) }}",
        "{{ 'x'|no_such_filter }}",
        "{{ 'x' is no_such_test }}",
        "{{ 'x'.no_such_method() }}",
        "{% nonsense %}",
        "{{",
        "{%",
        "{#",
        "{{ 'x",
        "{% raw %}",
        "{% if 1 %}",
        "{% endif %}",
        "{{ 1 2 }}",
        "{{ }}",
        "{{ \u{1} }}",
        "{% for %}",
        "{% set %}",
        "{{ a b }}",
        "{% break %}",
        "{{ x.y.z }}",
        "{{ x() }}",
        "{{ 1() }}",
        "{{ none + 'a' }}",
        "{{ 'a' + none }}",
    ] {
        let error = render(source).map(|text| panic!("{source}: {text}")).unwrap_err();
        assert!(
            matches!(error, ChatError::Template { .. } | ChatError::Render { .. }),
            "{source}: {error}"
        );
    }
    assert_eq!(
        render(
            "{{ x }}{{ x is defined }}{{ x|default('d') }}{{ not x }}{% for i in x %}{% endfor %}"
        )
        .unwrap(),
        "FalsedTrue"
    );
}
