/* placeholder so that the target links until its first source lands */ typedef int model_placeholder;
