/* A program that is not linked to the library: dlopen_host LIBRARY MODEL. */
#include "check.h"

#include <dlfcn.h>

/* A local pointer of the function's own type and name. */
#define RESOLVE(function)                                                                          \
    __typeof__(&function) own_##function;                                                          \
    *(void **)&own_##function = dlsym(library, #function);                                         \
    CHECK(own_##function != NULL)

int main(int argc, char **argv) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_text text = reference_text();
    const semantic_classification *result;
    semantic_model model;
    void *library;

    CHECK(argc == 3);
    CHECK(dlsym(RTLD_DEFAULT, "semantic_version") == NULL);
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        fprintf(stderr, "%s\n", dlerror());
    CHECK(library != NULL);
    CHECK(dlsym(RTLD_DEFAULT, "semantic_version") == NULL);
    RESOLVE(semantic_load_model);
    RESOLVE(semantic_classify);
    RESOLVE(semantic_free);
    RESOLVE(semantic_cleanup);

    if (own_semantic_load_model(argv[2], NULL, &model, &error) != SEMANTIC_OK ||
        own_semantic_classify(model, &text, 1, NULL, &result, &error) != SEMANTIC_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 3;
    }
    printf("%s %.4f\n", result->labels[result->label_index[0]].data, result->score[0]);
    own_semantic_free(result);
    CHECK(own_semantic_cleanup(1000, &error) == SEMANTIC_OK);
    CHECK(dlclose(library) == 0); /* it stays: its threads live on */
    return 0;
}
