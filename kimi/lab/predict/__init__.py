"""Compiles for TPU v7 without one, and predicts what the compiled kernel would cost.

    built = compile_target("package.module:build", {"rows": 1})       # launch: a subprocess
    predictions = simulate(built.kernel().program, ALLOWED)           # simulate, under cost models
    print(report_text(step_report("1 row", built, built.kernel(), predictions)))

For the decode kernel `steps` does all of it, and `python -m kimi.lab predict` on the command line:

    predicted = predict(StepOptions(rows=8, block=True), compare=True)
    print(report_text(predicted.report))

A chunk of a prompt, which is a whole XLA program, is `prompt_steps.predict_prompt`'s; the program
of drafted steps, in tokens a second, `end_to_end`'s. What a message, a link or a byte costs is
data, in `costs`; `calibration` holds it to what was measured in public.

All that depends on the one libtpu whose dumps are read is in `dump`, which checks its version.

Import order, one way: units <- bundles <- dump; costs, links <- network; bundles, scalars, costs,
queues, network <- timing <- machine <- operands <- copies <- decode; decode, dump <- simulate,
trace; simulate <- timeline <- drawing; failures, dump, links <- topology, compile <- worker,
launch; bands, launch, simulate <- report. Of the decode kernel: subjects, feed; of the peer: peer
<- peer_kernel <- skeleton; all of these <- steps. Of whole programs: shapes <- loops, prompts;
module, trace <- module_time; prompts, module_time <- prompt_report <- prompt_steps; loops,
module_time, report <- end_to_end. Of measured programs: replicas <- replica_step; replicas,
skeleton, trace <- calibration. Every time this package prints is *predicted*: it is read off the
compiler's static schedule, under cost models that fit what others measured; nothing of this
project has been measured.
"""
