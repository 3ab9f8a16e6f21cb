/* Load a model on a device and print where it runs, or the status and the message.
 *
 *     where MODEL_FOLDER DEVICE
 */
#include <semantic.h>

#include <stdio.h>

int main(int argc, char **argv) {
    semantic_load_options options = SEMANTIC_LOAD_OPTIONS_INIT;
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_model_info *info;
    const semantic_stats *stats;
    semantic_model model;

    if (argc != 3)
        return 2;
    options.device = argv[2];
    if (semantic_load_model(argv[1], &options, &model, &error) != SEMANTIC_OK) {
        printf("%s: %s\n", semantic_status_name(error.status), error.message);
        return 0;
    }
    if (semantic_get_model_info(model, &info, &error) != SEMANTIC_OK ||
        semantic_get_stats(&stats, &error) != SEMANTIC_OK)
        return 3;
    printf("%s %s %s %s\n", info->device.data, info->provider.data, info->precision.data,
           stats->model_device[0].data);
    for (size_t i = 0; i < info->warning_count; i++)
        printf("%s\n", info->warnings[i].data);
    semantic_free(info);
    semantic_free(stats);
    return semantic_cleanup(1000, &error) == SEMANTIC_OK ? 0 : 4;
}
