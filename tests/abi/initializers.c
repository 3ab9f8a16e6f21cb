/* Compiled as C99 and as C++: the header and its initialisers, and nothing else. */
#include <semantic.h>

int main(void) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_init_options init = SEMANTIC_INIT_OPTIONS_INIT;
    semantic_load_options load = SEMANTIC_LOAD_OPTIONS_INIT;
    semantic_run_options run = SEMANTIC_RUN_OPTIONS_INIT;
    semantic_request request = SEMANTIC_REQUEST_INIT;

    if (error.struct_size != sizeof error || error.status != SEMANTIC_OK ||
        error.input_index != -1 || error.message[0] != '\0')
        return 1;
    if (init.struct_size != sizeof init || init.device || init.environment ||
        init.intra_op_threads || init.parallel_runs || init.queue_rows || init.queue_tokens ||
        init.log_level)
        return 2;
    if (load.struct_size != sizeof load || load.name || load.task || load.precision ||
        load.device || load.max_tokens || load.max_batch_rows || load.max_batch_tokens ||
        load.max_text_bytes || load.base_path || load.replaces.id || load.intra_op_threads ||
        load.parallel_runs || load.queue_rows || load.queue_tokens || load.timeout_ms ||
        load.adapter_mode || load.arena_bytes)
        return 3;
    if (run.struct_size != sizeof run || run.timeout_ms || run.cancel_key || run.long_text ||
        run.window_overlap || run.shorten || run.dimension || run.layer || run.threshold != 0 ||
        run.prompt_name || run.output || run.normalize || run.max_tokens)
        return 4;
    if (request.struct_size != sizeof request || request.model.id || request.options)
        return 5;
    return 0;
}
