"""Compiles for TPU v7 without one, and predicts what the compiled kernel would cost.

    built = compile_target("package.module:build", {"rows": 1})       # launch: a subprocess
    predictions = simulate(built.kernel().program, ALLOWED)         # simulate
    print(report_text(step_report("1 row", built, built.kernel(), predictions)))

For the decode kernel `steps` does all of it, and `python -m kimi.lab predict` on the command line:

    predicted = predict(StepOptions(rows=8, block=True), compare=True)
    print(report_text(predicted.report))

A chunk of a prompt, which is a whole XLA program, is `prompt_steps.predict_prompt`'s.

All that depends on the one libtpu whose dumps are read is in `dump`, which checks its version.

Import order, one way: units <- bundles <- dump; bundles, scalars, costs <- timing <- machine
<- operands <- copies <- decode; decode, dump <- simulate <- timeline <- drawing; failures, dump
<- topology, compile <- worker, launch <- report. Of the decode kernel: subjects, feed; of the peer:
peer <- peer_kernel <- skeleton; all of these <- steps. Of whole programs: shapes <- loops, prompts;
module <- module_time; prompts, module_time <- prompt_report <- prompt_steps.
Every time this package prints is *predicted*: it is read off the compiler's static schedule and has
not been checked against hardware.
"""
