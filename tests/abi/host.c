/* A linked program: host MODEL [ENVIRONMENT]. Says in one line what the first call and a
 * classification answered, or on two what the first call and one after it answered. */
#include "check.h"

int main(int argc, char **argv) {
    semantic_init_options init = SEMANTIC_INIT_OPTIONS_INIT;
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_text text = reference_text();
    const semantic_classification *result;
    semantic_model model;

    CHECK(argc == 2 || argc == 3);
    init.environment = argc == 3 ? argv[2] : NULL;
    if (semantic_init(&init, &error) != SEMANTIC_OK) {
        const semantic_model_list *list;

        printf("%s %s\n", semantic_status_name(error.status), error.message);
        CHECK(semantic_list_models(&list, &error) != SEMANTIC_OK);
        CHECK(list == NULL);
        printf("%s %s\n", semantic_status_name(error.status), error.message);
        return 3;
    }
    CHECK_OK(semantic_load_model(argv[1], NULL, &model, &error), &error);
    CHECK_OK(semantic_classify(model, &text, 1, NULL, &result, &error), &error);
    printf("%s %.4f\n", result->labels[result->label_index[0]].data, result->score[0]);
    semantic_free(result);
    CHECK_OK(semantic_cleanup(1000, &error), &error);
    return 0;
}
